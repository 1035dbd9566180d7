#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "codegen/cpu/cpu.h"
#include "support/tensor.h"

namespace heddle::codegen::cpu {

/// The host, and the same instruction set families with less.
inline std::vector<Machine> machines() {
  std::vector<Machine> out = {host_machine()};
#if defined(__x86_64__)
  for (const char* name : {"x86-64", "x86-64-v3", "x86-64-v4"}) {
    auto m = machine_named(name);
    EXPECT_TRUE(m.ok()) << name;
    if (m.ok() && m->vector_bytes <= out[0].vector_bytes) out.push_back(*m);
  }
#endif
  return out;
}

inline kernel::Kernel parsed(std::string_view text) {
  auto k = kernel::parse_kernel(text);
  EXPECT_TRUE(k.ok()) << (k.ok() ? "" : k.error().message);
  if (!k.ok()) return {};
  const Status status = kernel::verify(*k);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return *k;
}

/// A kernel as machine code in this process.
class Compiled {
 public:
  explicit Compiled(const kernel::Kernel& k, const Machine& m = host_machine()) {
    auto object = compile({&k, 1}, m, "t");
    EXPECT_TRUE(object.ok()) << (object.ok() ? "" : object.error().message);
    info_ = object->kernels.at(0);
    auto module = load({&object->bytes, 1});
    EXPECT_TRUE(module.ok()) << (module.ok() ? "" : module.error().message);
    module_ = *module;
  }
  /// Phases one after another; the tasks of a phase in two calls, the later half first.
  void run(std::vector<void*> args) const {
    std::vector<std::vector<std::byte>> locals;
    for (const std::int64_t bytes : info_.local_bytes) {
      locals.emplace_back(static_cast<std::size_t>(bytes) + 64);
      args.push_back(aligned(locals.back()));
    }
    std::vector<std::byte> scratch(static_cast<std::size_t>(info_.scratch_bytes) + 64);
    for (const PhaseInfo& p : info_.phases) {
      const TaskFn f = module_->find(p.symbol);
      ASSERT_NE(f, nullptr) << p.symbol;
      f(args.data(), p.tasks / 2, p.tasks, aligned(scratch));
      f(args.data(), 0, p.tasks / 2, aligned(scratch));
    }
  }
  TaskFn phase(std::size_t i = 0) const { return module_->find(info_.phases.at(i).symbol); }
  const KernelInfo& info() const { return info_; }

 private:
  static std::byte* aligned(std::vector<std::byte>& v) {
    return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(v.data()) + 63) / 64 *
                                        64);
  }
  KernelInfo info_;
  std::shared_ptr<Module> module_;
};

}  // namespace heddle::codegen::cpu
