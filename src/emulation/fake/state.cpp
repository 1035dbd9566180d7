#include "emulation/fake/state.h"

#include <cstdlib>
#include <cstring>

#include "support/log.h"

namespace heddle::emulation::fake {
namespace {

constexpr char kMagic[] = "HEDDLE-EMULATED-CUBIN";

/// The name of a setting and its value; this library has no other way to be told.
void set(Settings& s, const std::string& key, const std::string& value) {
  const auto number = [&] { return std::strtoll(value.c_str(), nullptr, 10); };
  if (key == "arch") s.capability = static_cast<int>(number());
  if (key == "arch" && (s.capability < 10 || value != std::to_string(s.capability)))
    s.problem = "HEDDLE_FAKE_CUDA: found arch=" + value + ", want a number such as 90";
  if (key == "sms") s.multiprocessors = static_cast<int>(number());
  if (key == "devices") s.devices = static_cast<int>(number());
  if (key == "memory") s.memory = number();
  if (key == "unit_ms") s.unit_ms = static_cast<int>(number());
  if (key == "order")
    s.order = value == "reverse"  ? Order::reverse
              : value == "random" ? Order::random
                                  : Order::forward;
  if (key == "seed") s.seed = static_cast<unsigned>(number());
  if (key == "sums") s.early_sums = value == "early";
  if (key == "races") s.races = number() != 0;
  if (key == "cache") s.cache = value;
  if (key == "fail") {
    const std::size_t first = value.find(':'), second = value.find(':', first + 1);
    if (first == value.npos || second == value.npos) return;
    s.fail_name = value.substr(0, first);
    s.fail_at = std::atoi(value.c_str() + first + 1);
    s.fail_code = std::atoi(value.c_str() + second + 1);
  }
}

Settings from(const char* text) {
  Settings s;
  std::string left = text ? text : "";
  while (!left.empty()) {
    const std::size_t end = std::min(left.find(','), left.size());
    const std::string row = left.substr(0, end);
    left.erase(0, end + 1);
    const std::size_t split = row.find('=');
    if (split != row.npos) set(s, row.substr(0, split), row.substr(split + 1));
  }
  return s;
}

}  // namespace

State& state() {
  static State* all = [] {
    auto* s = new State;
    s->settings = from(std::getenv("HEDDLE_FAKE_CUDA"));
    return s;
  }();
  return *all;
}

std::vector<void*>& current() {
  thread_local std::vector<void*> stack;
  return stack;
}
int& capturing() {
  thread_local int count = 0;
  return count;
}

Call::Call(const char* name, Needs needs) : lock(state().mutex) {
  State& s = state();
  const int number = ++s.calls[name];
  if (s.settings.fail_name == name && (s.settings.fail_at == number || s.settings.fail_at == 0))
    code = s.settings.fail_code;
  if (code == kIllegalAddress || code == kLaunchFailed) s.error = code;
  if (code == kOk && needs == context)
    code = current().empty() || current().back() == nullptr ? kInvalidContext : s.error;
}

bool State::holds(std::uint64_t at, std::uint64_t bytes) const {
  auto after = device.upper_bound(at);
  if (after == device.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return at + bytes <= begin + static_cast<std::uint64_t>(size);
}

int State::run(const Work& work) {
  if (error == kOk) error = work();
  return error;
}

int State::drain(Stream& stream) {
  while (!stream.queue.empty()) {
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    run(work);
  }
  return error;
}

int State::drain(Stream& stream, const Event& event, int record) {
  while (event.seen < record && !stream.queue.empty()) {
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    run(work);
  }
  return error;
}

int State::enqueue(Stream& stream, Work work) {
  if (stream.capture)
    stream.capture->work.push_back(std::move(work));
  else
    stream.queue.push_back(std::move(work));
  return kOk;
}

std::string pack_cubin(const std::string& arch, const std::string& text) {
  std::string out = kMagic;
  out += '\n' + arch + '\n' + std::to_string(text.size()) + '\n';
  return out + text;
}

std::unique_ptr<Cubin> unpack_cubin(const void* image) {
  const char* at = static_cast<const char*>(image);
  if (std::strncmp(at, kMagic, sizeof kMagic - 1) != 0) return nullptr;
  at += sizeof kMagic;
  const char* arch_end = std::strchr(at, '\n');
  char* text = nullptr;
  const unsigned long long bytes = std::strtoull(arch_end + 1, &text, 10);
  return std::make_unique<Cubin>(Cubin{{at, arch_end}, {text + 1, bytes}});
}

CompileOptions compile_options() {
  CompileOptions options;
  options.races = state().settings.races;
  options.cache_dir = state().settings.cache;
  return options;
}

}  // namespace heddle::emulation::fake

/// Objects that were made and not given back.
HEDDLE_FAKE int heddle_fake_live() {
  return static_cast<int>(heddle::emulation::fake::state().live());
}
/// How often an entry point was called.
HEDDLE_FAKE int heddle_fake_calls(const char* name) {
  return heddle::emulation::fake::state().calls[name];
}
/// The settings again, as in the environment variable; what is alive stays.
HEDDLE_FAKE void heddle_fake_set(const char* text) {
  using namespace heddle::emulation::fake;
  state().settings = from(text);
  state().error = kOk;
  state().calls.clear();
}
