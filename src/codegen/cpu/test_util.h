#pragma once
#include <gtest/gtest.h>

#include <cmath>
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

/// Values that matter: both signs, fractions, exact zeros, small integers.
inline void fill(Tensor& t, std::mt19937& random) {
  std::uniform_real_distribution<double> real(-4, 4);
  for (std::int64_t i = 0; i < t.count(); ++i) {
    const bool edge = random() % 16 == 0;
    if (is_float(t.dtype())) {
      t.set(i, edge ? static_cast<double>(random() % 3) - 1 : real(random));
    } else if (t.dtype() == DType::b1) {
      t.set_int(i, random() % 2);
    } else {
      t.set_int(i, static_cast<std::int64_t>(random() % 15) - (is_signed_int(t.dtype()) ? 7 : 0));
    }
  }
}

/// One guard page worth of bytes around each argument, checked after the run.
struct Padded {
  explicit Padded(const Tensor& t)
      : bytes(static_cast<std::size_t>(t.bytes()) + 512, std::byte{0xA5}) {
    std::memcpy(data(), t.data(), static_cast<std::size_t>(t.bytes()));
  }
  std::byte* data() { return bytes.data() + 256; }
  bool intact() const {
    for (std::size_t i = 0; i < 256; ++i) {
      if (bytes[i] != std::byte{0xA5} || bytes[bytes.size() - 1 - i] != std::byte{0xA5})
        return false;
    }
    return true;
  }
  std::vector<std::byte> bytes;
};

inline void expect_close(const Tensor& got, const Tensor& want, double tolerance,
                         const std::string& what) {
  int shown = 0;
  for (std::int64_t i = 0; i < got.count() && shown < 3; ++i) {
    const double g = got.at(i), w = want.at(i);
    const bool same = (std::isnan(g) && std::isnan(w)) || g == w ||
                      std::fabs(g - w) <= tolerance * std::max(1.0, std::fabs(w));
    if (!same && ++shown) ADD_FAILURE() << what << "[" << i << "]: got " << g << ", want " << w;
  }
}

/// Machine code against the interpreter on random inputs.
inline void check(const kernel::Kernel& k, const Machine& m, double tolerance, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<Tensor> want;
  for (int i = 0; i < k.arguments(); ++i) {
    for (const kernel::Buffer& b : k.buffers) {
      if (b.argument == i) want.push_back(Tensor({b.dtype, {b.size}}));
    }
  }
  for (Tensor& t : want) fill(t, random);
  std::vector<Padded> got;
  std::vector<void*> args;
  for (const Tensor& t : want) got.emplace_back(t);
  for (Padded& p : got) args.push_back(p.data());
  std::vector<std::span<std::byte>> spans;
  for (Tensor& t : want) spans.push_back({t.mutable_data(), static_cast<std::size_t>(t.bytes())});
  const Status status = kernel::interpret(k, spans);
  ASSERT_TRUE(status.ok()) << status.error().message;
  Compiled(k, m).run(args);
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(got[i].intact()) << k.name << ": argument " << i << " overrun";
    expect_close(Tensor(want[i].type(), nullptr, got[i].data()), want[i], tolerance,
                 k.name + " argument " + std::to_string(i));
  }
}

/// A kernel of these buffers and one grid loop of three tasks d0.
inline std::string kernel_text(const std::string& buffers, const std::string& body, int vars = 12) {
  return fmt::format("kernel \"case\" vars={} {{\n{}\nfor grid d0 in 0..3 {{\n{}\n}}\n}}", vars,
                     buffers, body);
}

}  // namespace heddle::codegen::cpu
