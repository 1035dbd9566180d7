#include <cmath>

#include "codegen/cpu/test_util.h"

namespace heddle::codegen::cpu {
namespace {

struct Case {
  const char* name;
  const char* text;
  double tolerance = 1e-5;
};

/// Values that matter: both signs, fractions, exact zeros, small integers.
void fill(Tensor& t, std::mt19937& random) {
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
  explicit Padded(const Tensor& t) : bytes(static_cast<std::size_t>(t.bytes()) + 512, std::byte{0xA5}) {
    std::memcpy(data(), t.data(), static_cast<std::size_t>(t.bytes()));
  }
  std::byte* data() { return bytes.data() + 256; }
  bool intact() const {
    for (std::size_t i = 0; i < 256; ++i) {
      if (bytes[i] != std::byte{0xA5} || bytes[bytes.size() - 1 - i] != std::byte{0xA5}) return false;
    }
    return true;
  }
  std::vector<std::byte> bytes;
};

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  int shown = 0;
  for (std::int64_t i = 0; i < got.count() && shown < 3; ++i) {
    const double g = got.at(i), w = want.at(i);
    const bool same = (std::isnan(g) && std::isnan(w)) || g == w ||
                      std::fabs(g - w) <= tolerance * std::max(1.0, std::fabs(w));
    if (!same && ++shown) ADD_FAILURE() << what << "[" << i << "]: got " << g << ", want " << w;
  }
}

/// Machine code against the interpreter on random inputs.
void check(const kernel::Kernel& k, const Machine& m, double tolerance, unsigned seed = 1) {
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

/// The host, and the same instruction set families with less.
std::vector<Machine> machines() {
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

constexpr Case kCases[] = {
    {"tails", R"(kernel "tails" vars=4 {
  buffer b0 "x" f32[43] grid arg=0
  buffer b1 "y" f32[43] grid arg=1 written
  for grid d0 in 0..1 {
    for serial d1 in 0..5 {
      for vector d2 in 0..8 { b1[d1*8 + d2] = add.f32(load.f32 b0[d1*8 + d2], f32(1)) }
    }
    for vector d3 in 0..3 { b1[d3 + 40] = mul.f32(load.f32 b0[d3 + 40], load.f32 b0[40]) }
  }
})"},
};

class Kernels : public testing::TestWithParam<Case> {};
TEST_P(Kernels, AgreeWithTheInterpreter) {
  const kernel::Kernel k = parsed(GetParam().text);
  for (const Machine& m : machines()) {
    SCOPED_TRACE(m.cpu);
    check(k, m, GetParam().tolerance);
  }
}
INSTANTIATE_TEST_SUITE_P(Rows, Kernels, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace heddle::codegen::cpu
