// What units of products ask of the device (kernel/unit_emulated.h).
#include <chrono>
#include <memory>
#include <thread>

#include "emulation/fake/state.h"

using namespace heddle::emulation;
using fake::state;

HEDDLE_FAKE int heddle_fake_call(const char* name) { return fake::Call(name).code; }

HEDDLE_FAKE int heddle_fake_holds(std::uint64_t at, std::uint64_t bytes) {
  const std::lock_guard lock(state().mutex);
  return state().holds(at, bytes) ? 1 : 0;
}

HEDDLE_FAKE int heddle_fake_enqueue(fake::Stream* stream, int (*work)(void*), void* data,
                                    void (*drop)(void*)) {
  const std::lock_guard lock(state().mutex);
  const std::shared_ptr<void> owned(data, drop);
  if (!state().streams.contains(stream)) return 1;
  return state().enqueue(*stream, [work, owned] {
    std::this_thread::sleep_for(std::chrono::milliseconds(state().settings.unit_ms));
    return work(owned.get());
  });
}
