// Barriers whose phases count arrivals and bytes (mbarrier), and the copies of a cluster that they count.
#include "machine.h"

namespace ptx {
namespace {

// A barrier that a thread accesses; another block's must have been published to the cluster.
PhaseBarrier& phases_at(Warp& warp, const Place& place, int lane) {
  place.read(8, warp, lane, Use::atomic);
  const auto found = warp.machine->phases.find(place.at);
  if (found == warp.machine->phases.end()) throw Trap("no mbarrier is there");
  PhaseBarrier& barrier = found->second;
  if (!warp.machine->ordered(barrier.begun, warp)) throw Trap("an mbarrier that may not have been initialized");
  if (warp.machine->warps[barrier.begun.warp].block != warp.block && !barrier.published)
    throw Trap("an mbarrier of another block with no fence.mbarrier_init since it was initialized");
  return barrier;
}

PhaseBarrier& phases_at(Warp& warp, const Address& a, int lane) {
  return phases_at(warp, place_of(warp, a, lane), lane);
}

// mbarrier.init "[barrier], arrivals"
void bind_init(Parser& s) {
  s.in.run = [at = s.address(0, Space::shared, 8), arrivals = s.read(2)](Warp& warp, Mask mask) {
    for_threads(mask, [&](int lane) {
      const Place place = place_of(warp, at, lane);
      place.write(8, warp, lane, Use::plain);
      const uint32_t count = warp.lanes<uint32_t>(arrivals)[lane];
      if (!count || !warp.machine->phases.emplace(place.at, PhaseBarrier(count, warp)).second)
        throw Trap("an mbarrier of no arrivals, or in place of another");
    });
  };
}

// mbarrier.arrive "_, [barrier]", and with expect_tx "_, [barrier], bytes"
Binder arrival(Space space, bool expects) {
  return [=](Parser& s) {
    s.in.run = [=, at = s.address(1, space, 8), bytes = expects ? s.read(3) : Operand()](Warp& warp, Mask mask) {
      warp.acts = true;
      for_threads(mask, [&](int lane) {
        PhaseBarrier& barrier = phases_at(warp, at, lane);
        if (expects) barrier.expect(int32_t(warp.lanes<uint32_t>(bytes)[lane]));
        barrier.arrive(warp.clocks);
      });
      if (space == Space::cluster && !warp.unused_count) warp.used = warp.clocks[warp.index];
      ++warp.clocks[warp.index];
    };
  };
}

// mbarrier.try_wait.parity "ended, [barrier], parity". Copies may take until somebody waits for them in vain. The
// first try of each such instruction comes too early, so that what follows a failed try runs.
void bind_wait(Parser& s) {
  const bool of_block = std::count(s.words.begin(), s.words.end(), "cluster") == 0;
  s.in.run = [=, ended = s.write(0), at = s.address(1, Space::shared, 8), parity = s.read(3),
              is_first = std::make_shared<bool>(true)](Warp& warp, Mask mask) {
    const bool is_early = std::exchange(*is_first, false);
    warp.acts |= is_early;
    for_threads(mask, [&](int lane) {
      const PhaseBarrier& barrier = phases_at(warp, at, lane);
      const bool has = !is_early && (barrier.phase & 1) != (warp.lanes<uint32_t>(parity)[lane] & 1);
      if (has && of_block && barrier.stored) throw Trap("a wait of block scope for what other blocks store");
      if (has) join(warp.clocks, barrier.released);
      set(warp, ended, lane, has);
      warp.yields |= !has;
    });
    if (warp.yields) warp.acts |= warp.machine->complete_copy();
  };
}

// st.async "[to], {words}, [barrier]"
void bind_store(Parser& s) {
  const Address to = s.address(0, Space::cluster, 16), barrier = s.address(6, Space::cluster, 8);
  s.in.run = [=, words = s.vector(2, 4, 4, false)](Warp& warp, Mask mask) {
    const Clock issued = warp.clocks[warp.index];
    const auto clocks = std::make_shared<Clocks>(warp.clocks);
    for_threads(mask, [&](int lane) {
      const Place target = place_of(warp, to, lane);
      PhaseBarrier* counts = &phases_at(warp, barrier, lane);
      std::array<uint32_t, 4> data;
      for (size_t e = 0; e < 4; ++e) data[e] = uint32_t(value_of(warp, words[e], lane));
      target.write(16, warp, lane, Use::starts);
      counts->stored = true;
      warp.machine->copies.emplace_back(target.at, [=, &warp] {
        memcpy(target.at, data.data(), 16);
        target.write(16, warp, lane, Use::ends, issued);
        counts->expect(-16);
        counts->release(*clocks);
      });
    });
    ++warp.clocks[warp.index];
  };
}

// cp.async.bulk "[to], [from], bytes, [barrier], ranks" to the same place in each of them
void bind_bulk_copy(Parser& s) {
  const Address to = s.address(0, Space::cluster, 16), from = s.address(2, Space::global, 16);
  const Address barrier = s.address(5, Space::cluster, 8);
  s.in.run = [=, size = s.read(4), ranks = s.read(7, -1)](Warp& warp, Mask mask) {
    Machine& machine = *warp.machine;
    const Clock issued = warp.clocks[warp.index];
    const auto clocks = std::make_shared<Clocks>(warp.clocks);
    for_threads(mask, [&](int lane) {
      const uint32_t bytes = warp.lanes<uint32_t>(size)[lane], place = uint32_t(value_of(warp, to.base, lane));
      const uint64_t source = value_of(warp, from.base, lane) + uint64_t(from.offset);
      const uint32_t counter = uint32_t(value_of(warp, barrier.base, lane) + uint64_t(barrier.offset));
      if (!bytes || bytes % 16) throw Trap("a bulk copy of " + std::to_string(bytes) + " bytes");
      const uint64_t members = value_of(warp, ranks, lane);
      for (uint32_t rank = 0; rank < 16; ++rank) {
        if (!(members >> rank & 1)) continue;
        const auto in_block = [&](uint32_t address) { return (rank + 1) << 24 | (address & 0xffffff); };
        const uint32_t target = in_block(uint32_t(place + uint64_t(to.offset)));
        if (target % 16 || source % 16) throw Trap("a bulk copy that is not aligned to 16 bytes");
        std::vector<std::pair<Place, Place>> words;
        for (uint32_t at = 0; at < bytes; at += 4) {
          const Place source_word = machine.place(warp, Space::global, source + at, 4);
          const Place target_word = machine.place(warp, Space::cluster, target + at, 4);
          source_word.read(4, warp, lane);
          if (source_word.word()) demand_visible(*source_word.word(), warp, fence_of_global, *warp.block);
          demand_visible(*target_word.word(), warp, fence_of_shared, warp.block->leader[rank]);
          demand_read(*target_word.word(), warp, warp.block->leader[rank]);
          target_word.write(4, warp, lane, Use::starts);
          words.emplace_back(source_word, target_word);
        }
        PhaseBarrier* of_block = &phases_at(warp, machine.place(warp, Space::cluster, in_block(counter), 8), lane);
        machine.copies.emplace_back(words[0].second.at, [=, &warp] {
          for (const auto& [source_word, target_word] : words) {
            memcpy(target_word.at, source_word.at, 4);
            target_word.write(4, warp, lane, Use::ends, issued);
            target_word.word()->by_proxy = true;
          }
          of_block->expect(-int32_t(bytes));
          of_block->release(*clocks);
        });
      }
    });
    ++warp.clocks[warp.index];
  };
}

}  // namespace

PhaseBarrier::PhaseBarrier(uint32_t count, const Warp& warp)
    : arrivals(count), missing(count), begun{warp.index, warp.clocks[warp.index]} {}

void PhaseBarrier::expect(int64_t more) {
  bytes += more;
  if (std::abs(bytes) >= 1 << 20) throw Trap("an mbarrier that counts 2^20 bytes");
}

void PhaseBarrier::arrive(const Clocks& clocks) {
  if (!missing) throw Trap("more arrivals at an mbarrier than it was initialized for");
  --missing;
  release(clocks);
}

void PhaseBarrier::release(const Clocks& clocks) {
  join(arriving, clocks);
  if (missing || bytes) return;
  missing = arrivals;
  ++phase;
  join(released, arriving);
}

bool Machine::complete_copy() {
  if (copies.empty()) return false;
  std::swap(copies[launch.seed ? random() % copies.size() : 0], copies.back());
  const auto complete = std::move(copies.back().second);
  copies.pop_back();
  complete();
  return true;
}

void add_phases(Table& t) {
  t["mbarrier.init.shared::cta.b64"] = bind_init;
  t["mbarrier.arrive.shared::cluster.b64"] = arrival(Space::cluster, false);
  t["mbarrier.arrive.expect_tx.shared::cta.b64"] = arrival(Space::shared, true);
  for (const char* scope : {"", ".acquire.cluster"})
    t[std::string("mbarrier.try_wait.parity") + scope + ".shared::cta.b64"] = bind_wait;
  t["st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32"] = bind_store;
  t["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"] = bind_bulk_copy;
  t["fence.mbarrier_init.release.cluster"] = action(
      [](Warp& warp, Mask) {
        for (auto& [at, barrier] : warp.machine->phases) barrier.published |= barrier.begun.warp == warp.index;
      },
      false);
}

}  // namespace ptx
