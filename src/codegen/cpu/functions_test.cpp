#include <cmath>

#include "codegen/cpu/test_util.h"

namespace heddle::codegen::cpu {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8,
                            DType::i16, DType::i32, DType::i64, DType::u8,   DType::u16,
                            DType::u32, DType::u64, DType::b1};

/// y[i] = expression of %0 = a[i] and %1 = b[i], with tails.
std::string map_text(DType in, DType out, const std::string& expression) {
  const std::string loads =
      fmt::format("let %0 = load.{0} b0[d0*17 + {1}] let %1 = load.{0} b1[d0*17 + {1}]",
                  name_of(compute_type(in)), "{}");
  const auto part = [&](const std::string& at) {
    return fmt::format(fmt::runtime(loads), at, at) +
           fmt::format(" b2[d0*17 + {}] = {}\n", at, expression);
  };
  return kernel_text(fmt::format("buffer b0 \"a\" {0}[51] grid arg=0\nbuffer b1 \"b\" {0}[51] grid "
                                 "arg=1\nbuffer b2 \"y\" {1}[51] grid arg=2 written",
                                 name_of(in), name_of(out)),
                     "for vector d1 in 0..8 { " + part("d1") + "} for vector d2 in 0..7 { " +
                         part("d2 + 8") + "} for serial d3 in 15..17 { " + part("d3") + "}");
}

TEST(Functions, OfEveryType) {
  const std::vector<Machine> all = machines();
  for (const DType type : kTypes) {
    const std::string t(name_of(compute_type(type)));
    for (int i = 0; i < ir::kScalarFnCount; ++i) {
      const auto fn = static_cast<ir::ScalarFn>(i);
      const ir::ScalarFnInfo& f = ir::info(fn);
      const bool bits = f.name.starts_with("bit_") || f.name.starts_with("shift_");
      if (f.name.starts_with("dot") && type != DType::i32) continue;
      if (fn == ir::ScalarFn::random_bits && type != DType::i64) continue;
      if (fn == ir::ScalarFn::cast || fn == ir::ScalarFn::bitcast || (bits && is_float(type)))
        continue;
      if (!is_float(type) && (ir::float_only(fn) || type == DType::b1)) continue;
      const DType out = f.gives_bool ? DType::b1 : type;
      std::string e = fmt::format("{}.{}(%0", f.name, name_of(compute_type(out)));
      if (f.arity == 2) e += ", %1";
      if (fn == ir::ScalarFn::select) e = fmt::format("select.{0}(less.b1(%0, %1), %0, %1", t);
      SCOPED_TRACE(e);
      const double tolerance = type == DType::f16 ? 2e-3 : type == DType::bf16 ? 2e-2 : 1e-5;
      const kernel::Kernel k = parsed(map_text(type, out, e + ")"));
      check(k, all[static_cast<std::size_t>(i) % all.size()], tolerance);
    }
  }
}

TEST(Functions, CastsBetweenAllTypes) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      const std::string scale =
          is_float(from) ? fmt::format("mul.{0}(%0, {0}(37.25))", name_of(compute_type(from)))
                         : "%0";
      const std::string e = fmt::format("cast.{}({})", name_of(compute_type(to)), scale);
      SCOPED_TRACE(fmt::format("{} to {}", name_of(from), name_of(to)));
      check(parsed(map_text(from, to, e)), host_machine(),
            to == DType::f16    ? 2e-3
            : to == DType::bf16 ? 2e-2
                                : 1e-6);
    }
  }
}

/// In registers, in vectors and alone: exact, to infinity, to denormals.
TEST(Functions, RoundTo16Bits) {
  for (const DType type : {DType::f32, DType::f64})
    for (const char* fn : {"round_f16", "round_bf16"})
      for (const int exponent : {0, 14, 15, -12, -23, 100, 126, -126}) {
        const std::string t(name_of(type));
        const std::string e =
            fmt::format("mul.{0}({1}.{0}(mul.{0}(%0, {0}({2}))), {0}({3}))", t, fn,
                        std::ldexp(1.0, exponent), std::ldexp(1.0, -exponent));
        SCOPED_TRACE(e);
        for (const Machine& m : machines()) check(parsed(map_text(type, type, e)), m, 0);
      }
}

/// Vectors and single elements, beyond every bound, infinite and not a number, bounded or not.
TEST(Functions, CastsToIntegersSaturate) {
  for (const DType from : {DType::f32, DType::f64})
    for (const DType to : kTypes) {
      if (!is_int(to)) continue;
      const std::string f(name_of(from)), t(name_of(to));
      for (const char* x :
           {"mul.{0}(%0, {0}(3e9))", "mul.{0}(%0, {0}(1e20))", "div.{0}(%0, {0}(0))",
            "mul.{0}(div.{0}(%0, {0}(0)), {0}(0))",
            "min.{0}(max.{0}(mul.{0}(%0, {0}(300)), {0}(-128)), {0}(127))",
            "min.{0}(max.{0}(div.{0}(%0, {0}(0)), {0}(0)), {0}(255))",
            "min.{0}(max.{0}(mul.{0}(div.{0}(%0, {0}(0)), {0}(0)), {0}(-1)), {0}(9))",
            "min.{0}(max.{0}(round.{0}(mul.{0}(%0, {0}(256))), {0}(-128)), {0}(127))",
            "min.{0}(max.{0}(round.{0}(div.{0}(%0, {0}(0))), {0}(0)), {0}(255))",
            "max.{0}(min.{0}(round.{0}(mul.{0}(%0, {0}(256))), {0}(200)), {0}(7))",
            "min.{0}(max.{0}(round.{0}(mul.{0}(%0, {0}(256))), {0}(0.5)), {0}(99.5))",
            "min.{0}(max.{0}(round.{0}(mul.{0}(div.{0}(%0, {0}(0)), {0}(0))), {0}(0)), {0}(9))"}) {
        const std::string e = fmt::format("cast.{}({})", t, fmt::format(fmt::runtime(x), f));
        SCOPED_TRACE(e);
        // The interpreter's product is not rounded to f32.
        for (const Machine& m : machines()) check(parsed(map_text(from, to, e)), m, 1e-6);
      }
    }
}

/// Registers of every width: one instruction rounds, halves to even, and NaN is 0, with a zero
/// point that is added to the integers or without.
TEST(Functions, BoundedValuesAreRoundedToBytesAtOnce) {
  for (const auto& [zero, x] :
       std::vector<std::pair<int, const char*>>{{0, "%0"},
                                                {0, "add.f32(%0, f32(0.5))"},
                                                {0, "div.f32(%0, f32(0))"},
                                                {131, "%0"},
                                                {131, "mul.f32(div.f32(%0, f32(0)), f32(0))"}})
    for (const int lanes : {4, 8, 16, 32}) {
      const std::string whole =
          fmt::format("min.f32(max.f32(round.f32(mul.f32({}, f32(64))), f32({})), f32({}))", x,
                      -zero, 255 - zero);
      const std::string e =
          zero == 0 ? fmt::format("cast.u8({})", whole)
                    : fmt::format("cast.u8(sub.i32(cast.i32({}), i32({})))", whole, -zero);
      const std::string text = fmt::format(R"(kernel "bytes" vars=2 {{
  buffer b0 "x" f32[{0}] grid arg=0
  buffer b1 "y" u8[{0}] grid arg=1 written
  for grid d0 in 0..3 {{ for vector d1 in 0..{1} {{
    let %0 = load.f32 b0[d0*{1} + d1] b1[d0*{1} + d1] = {2} }} }}
}})",
                                           3 * lanes, lanes, e);
      SCOPED_TRACE(text);
      for (const Machine& m : machines()) check(parsed(text), m, 0);
#if defined(__x86_64__)
      Machine m = host_machine();
      if (m.vector_bytes < 4 * lanes) continue;
      const std::string code = *to_assembly_text(parsed(text), m);
      EXPECT_NE(code.find("cvtps2dq"), std::string::npos);
      EXPECT_EQ(code.find("vrndscaleps"), std::string::npos);
      EXPECT_EQ(code.find("vroundps"), std::string::npos);
#endif
    }
}

/// Neighbours as halves of one integer, in vectors, alone, and where they are no neighbours; bytes
/// are widened.
TEST(Functions, HalvesOfNeighbours) {
  for (const std::string type : {"i16", "i8", "u8"}) {
    const auto halves = [&](const std::string& low, const std::string& high) {
      return fmt::format(
          "bit_or.i32(bit_and.i32(cast.i32(load.{0} b0[{1}]), i32(65535)), "
          "shift_left.i32(cast.i32(load.{0} b0[{2}]), i32(16)))",
          type, low, high);
    };
    const std::string at = "d0*17 + ";
    const auto line = [&](const std::string& i, const std::string& low, const std::string& high) {
      return fmt::format("b1[{}{}] = dot2.i32({}, i32(-65533)) ", at, i, halves(low, high));
    };
    const kernel::Kernel k = parsed(kernel_text(
        "buffer b0 \"a\" " + type + "[120] grid arg=0\nbuffer b1 \"y\" i32[51] grid arg=1 written",
        "for vector d1 in 0..8 { " + line("d1", "d0*34 + d1*2", "d0*34 + d1*2 + 1") +
            "} for vector d2 in 0..5 { " +
            line("d2 + 8", "d0*34 + d2*2 + 16", "d0*34 + d2*2 + 17") +
            "} for serial d3 in 13..15 { " + line("d3", "d0*34 + d3*2", "d0*34 + d3*2 + 1") +
            "} for serial d4 in 15..17 { " + line("d4", "d0*34 + d4", "d0*34 + d4 + 3") + "}"));
    for (const Machine& m : machines()) check(k, m, 0);
  }
}

/// Products of bf16 in pairs, as vectors of several widths and alone, added to a sum.
TEST(Functions, ProductsOfHalves) {
  const std::string word =
      "bit_or.i32(bit_and.i32(shift_right.i32(bitcast.i32(load.f32 b0[{0}]), i32(16)), "
      "i32(65535)), "
      "shift_left.i32(shift_right.i32(bitcast.i32(load.f32 b0[{1}]), i32(16)), i32(16)))";
  const auto line = [&](const std::string& i, const std::string& low, const std::string& high) {
    const std::string w = fmt::format(fmt::runtime(word), low, high);
    const auto half = [&](const std::string& bits) { return "bitcast.f32(" + bits + ")"; };
    const std::string lo = half("shift_left.i32(" + w + ", i32(16))");
    const std::string hi = half("bit_and.i32(" + w + ", i32(-65536))");
    return fmt::format(
        "b1[d0*17 + {0}] = add.f32(f32(0.5), add.f32(mul.f32({1}, {1}), "
        "mul.f32({2}, {2}))) ",
        i, lo, hi);
  };
  const kernel::Kernel k = parsed(kernel_text(
      "buffer b0 \"a\" bf16[120] grid arg=0\nbuffer b1 \"y\" f32[51] grid arg=1 written",
      "for vector d1 in 0..8 { " + line("d1", "d0*34 + d1*2", "d0*34 + d1*2 + 1") +
          "} for vector d2 in 0..5 { " + line("d2 + 8", "d0*34 + d2*2 + 16", "d0*34 + d2*2 + 17") +
          "} for serial d3 in 13..15 { " + line("d3", "d0*34 + d3*2", "d0*34 + d3*2 + 1") +
          "} for serial d4 in 15..17 { " + line("d4", "d0*34 + d4", "d0*34 + d4 + 3") + "}"));
  for (const Machine& m : machines()) check(k, m, 1e-6);
}

/// Words of bytes and of halves that lie lines apart, of fewer lines than a word has, of whole
/// vectors and of parts of one; halves of numbers that are cast are no bits of memory.
TEST(Functions, WordsOfLines) {
  struct Row {
    const char *stored, *part;
    int parts;
    bool permuted = true;
  };
  for (const Row& row :
       {Row{"u8", "cast.i32(load.u8 b0[{0}])", 4}, Row{"i8", "cast.i32(load.i8 b0[{0}])", 4},
        Row{"bf16", "shift_right.i32(bitcast.i32(load.f32 b0[{0}]), i32(16))", 2},
        Row{"bf16", "cast.i32(load.f32 b0[{0}])", 2, false},
        Row{"f16", "cast.i32(load.f32 b0[{0}])", 2, false}})
    for (int there = 1; there <= row.parts; ++there)
      for (const int lanes : {16, 11})
        for (const int apart : {1, 37}) {
          std::string word;
          for (int i = 0; i < row.parts; ++i) {
            const std::string at = fmt::format("d0*16 + d1 + {}", i * apart);
            std::string part =
                i < there ? fmt::format(fmt::runtime(row.part), at) : std::string("i32(0)");
            if (i + 1 < row.parts)
              part = fmt::format("bit_and.i32({}, i32({}))", part, row.parts == 4 ? 255 : 65535);
            if (i > 0) part = fmt::format("shift_left.i32({}, i32({}))", part, 32 / row.parts * i);
            word = i == 0 ? part : fmt::format("bit_or.i32({}, {})", word, part);
          }
          const std::string text = fmt::format(R"(kernel "words" vars=2 {{
  buffer b0 "x" {}[200] grid arg=0
  buffer b1 "y" i32[48] grid arg=1 written
  for grid d0 in 0..3 {{ for vector d1 in 0..{} {{ b1[d0*16 + d1] = {} }} }}
}})",
                                               row.stored, lanes, word);
          SCOPED_TRACE(text);
          for (const Machine& m : machines()) check(parsed(text), m, 0);
          Machine host = host_machine();
          const bool has = row.parts == 4 ? host.byte_tables : host.bf16_pairs;
          if (!has || host.vector_bytes < 64 || lanes < 16 || there < 2 || apart == 1) continue;
          const std::string code = *to_assembly_text(parsed(text), host);
          EXPECT_EQ(
              code.find("vpermb") != std::string::npos || code.find("vpermw") != std::string::npos,
              row.permuted);
        }
}

TEST(Functions, BitcastsKeepTheBits) {
  for (const auto& [a, b] : {std::pair{DType::f32, DType::u32}, std::pair{DType::f64, DType::i64}})
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
      SCOPED_TRACE(fmt::format("{} to {}", name_of(from), name_of(to)));
      check(parsed(map_text(from, to, fmt::format("bitcast.{}(%0)", name_of(to)))), host_machine(),
            0);
    }
}

TEST(Functions, NansPropagateThroughMinAndMax) {
  for (const char* e :
       {"max.f32(%0, %1)", "min.f32(%0, %1)", "max.f32(%0, f32(0))", "max.f32(f32(0), %0)"}) {
    const Compiled code(parsed(map_text(DType::f32, DType::f32, e)));
    std::vector<float> a(51, 1), b(51, 2), y(51);
    for (std::size_t i = 0; i < 51; i += 3) a[i] = NAN;
    for (std::size_t i = 1; i < 51; i += 3) b[i] = NAN;
    code.run({a.data(), b.data(), y.data()});
    for (std::size_t i = 0; i < 51; ++i) {
      const bool uses_b = std::string_view(e).find("%1") != std::string_view::npos;
      EXPECT_EQ(std::isnan(y[i]), i % 3 == 0 || (uses_b && i % 3 == 1)) << e << " at " << i;
    }
  }
}

}  // namespace
}  // namespace heddle::codegen::cpu
