// A device for the project's launchers: the runtime calls that they make, over the interpreter. The PTX is what lies in
// the fat binaries of the host objects, so it is what ships.
#pragma once

#include "machine.h"

namespace ptx {

struct Device {
  int processors = 132, shared = 232448, shared_per_processor = 233472;
  std::pair<int, int> capability = {9, 0};
  std::vector<int> clusters = {18, 18, 16, 16, 16, 16, 16, 16};  // processors of each part that a cluster lies in
};

struct Source {
  std::string text;
  Module kernels;  // empty: not parsed yet
};

struct Runtime {
  Device device;
  Settings settings;
  GlobalMemory memory;
  std::vector<Source> sources;
  std::vector<size_t> embedded;  // sources that fat binaries brought
  std::map<const void*, std::string> names;
  std::map<std::string, int> allowed_shared;
  std::string error;

  static Runtime& get();
  Module& kernels(size_t source);
  Kernel& find(const std::vector<size_t>& sources, const std::string& name);
  // A plain launch of `kernel`; throws a Trap.
  void launch(Kernel& kernel, Launch launch, const std::vector<std::string>& arguments);
};

}  // namespace ptx
