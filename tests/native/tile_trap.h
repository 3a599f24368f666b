// AMX tile instructions on a CPU that has none: there they raise SIGILL, and a handler carries them out by the
// instruction set reference. So the instructions that run are the ones that were compiled, operand sizes, strides and
// register numbers included. Whatever the reference faults on ends the program with a message.
#pragma once

namespace tile_trap {

// Installs the handler for the process.
void install();

// Instructions carried out so far, by all threads.
struct Counts {
  long configured, loaded, stored, multiplied;
};
Counts counts();

// Threads that have configured their tiles and not released them.
long threads_with_tiles();

}  // namespace tile_trap
