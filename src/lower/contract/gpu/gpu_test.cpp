// Contractions on a GPU: every kernel is run by the kernel interpreter, which looks for races, and
// compared with the primitives.
#include "kernel/traverse.h"
#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

Case gpu_case() {
  Case c;
  c.target.device = Device::cuda;
  c.target.vector_bytes = 16;
  return c;
}

TEST(GpuContract, Matmul) {
  for (const auto& [m, n, k] :
       {std::array{5, 16, 7}, {13, 40, 33}, {64, 24, 10}, {30, 9, 50}, {33, 68, 40}}) {
    for (bool constant : {true, false}) {
      Case c = gpu_case();
      const NodeId x = c.input({m, k});
      const NodeId w = constant ? c.constant({k, n}) : c.input({k, n});
      c.output(c.b.matmul(x, w));
      SCOPED_TRACE(fmt::format("{}x{}x{} {}", m, n, k, constant));
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST(GpuContract, EveryTile) {
  for (DType type : {DType::f32, DType::bf16}) {
    Case c = gpu_case();
    const NodeId x = c.input({70, 40}, type), w = c.input({40, 72}, type);
    c.output(c.b.relu(c.b.matmul(x, w)));
    const auto space = contract::tuning_space(request_of(c));
    ASSERT_GE(space.size(), 4u);
    for (const Tuning& t : space) {
      c.tuning = t;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST(GpuContract, TensorCores) {
  for (DType type : {DType::bf16, DType::f16})
    for (int which = 0; which < 4; ++which)
      for (const auto& [m, n, k] : {std::array{12, 16, 7}, {40, 72, 48}, {33, 24, 100}}) {
        Case c = gpu_case();
        const bool ta = which & 1, tb = which & 2;
        NodeId x = c.input(ta ? Shape{k, m} : Shape{m, k}, type);
        NodeId w = c.input(tb ? Shape{n, k} : Shape{k, n}, type);
        if (ta) x = c.b.transpose(x, {1, 0});
        if (tb) w = c.b.transpose(w, {1, 0});
        c.output(c.b.matmul(x, w));
        SCOPED_TRACE(fmt::format("{} {}x{}x{} {}", name_of(type), m, n, k, which));
        ASSERT_NO_FATAL_FAILURE(check(c));
        EXPECT_NE(c.schedule.find("mma"), std::string::npos) << c.schedule;
      }
}

TEST(GpuContract, TransposedOperands) {
  for (int which = 0; which < 8; ++which) {
    Case c = gpu_case();
    const bool ta = which & 1, tb = which & 2, constant = which & 4;
    NodeId x = c.input(ta ? Shape{11, 13} : Shape{13, 11});
    NodeId w = tb ? (constant ? c.constant({20, 11}) : c.input({20, 11}))
                  : (constant ? c.constant({11, 20}) : c.input({11, 20}));
    if (ta) x = c.b.transpose(x, {1, 0});
    if (tb) w = c.b.transpose(w, {1, 0});
    c.output(c.b.matmul(x, w));
    SCOPED_TRACE(which);
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

/// The statements without the one that is number `gone` among those that order threads or copies.
bool orders(const kernel::Stmt& s) {
  return std::holds_alternative<kernel::Barrier>(s.op) ||
         std::holds_alternative<kernel::CopyGroup>(s.op) ||
         std::holds_alternative<kernel::MmaWait>(s.op) ||
         std::holds_alternative<kernel::Event>(s.op);
}
kernel::Body without(const kernel::Body& body, int& gone) {
  kernel::Body out;
  kernel::Mapper m;
  m.body = [&](const kernel::Body& inner) { return without(inner, gone); };
  for (const kernel::Stmt& s : body) {
    if (orders(s) && gone-- == 0) continue;
    out.push_back(kernel::map_children(s, m));
  }
  return out;
}

// Every barrier, wait and commit is needed, and the interpreter notices when one is missing.
TEST(GpuContract, EverySynchronisationIsNeeded) {
  enum { scalar, mma, wgmma, tma };
  for (int unit = scalar; unit <= tma; ++unit) {
    Case c = gpu_case();
    const DType type = unit == scalar ? DType::f32 : DType::bf16;
    const bool groups = unit >= wgmma;
    c.target.warpgroups = groups;
    c.target.multiprocessors = 1;
    c.tuning = {{"unit", unit}, {"bm", groups ? 64 : 32}, {"bn", groups ? 64 : 32}};
    const std::int64_t m = groups ? 192 : 40, n = groups ? 64 : 40, k = groups ? 384 : 200;
    const NodeId x = c.input({m, k}, type), w = c.input({n, k}, type);
    c.output(c.b.matmul(x, c.b.transpose(w, {1, 0})));
    int count = 0;
    const auto lowered = contract::lower(request_of(c));
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    kernel::for_each_stmt(lowered->kernel.body, [&](const kernel::Stmt& s) { count += orders(s); });
    ASSERT_GE(count, 5);
    EXPECT_EQ(run(c, *lowered), "");
    for (int i = 0; i < count; ++i) {
      Lowered broken = *lowered;
      int gone = i;
      broken.kernel.body = without(broken.kernel.body, gone);
      // The barrier before the results only lets them use the room of the tiles.
      if ((unit == mma || unit == wgmma) && i == count - 2) continue;
      EXPECT_NE(run(c, broken), "") << "number " << i << " of\n"
                                    << kernel::to_string(lowered->kernel);
    }
  }
}

TEST(GpuContract, TensorFloatsOnRequest) {
  Case c = gpu_case();
  c.tuning = {{"tf32", 1}};
  c.tolerance = 2e-3;
  c.output(c.b.matmul(c.input({33, 50}), c.b.transpose(c.input({41, 50}), {1, 0})));
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_NE(c.schedule.find("mma"), std::string::npos) << c.schedule;
  c.tuning = {};
  c.tolerance = 1e-5;
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_NE(c.schedule.find("scalar"), std::string::npos) << c.schedule;
}

// Reductions shared by several blocks are added in a second phase, in order.
TEST(GpuContract, SplitReductions) {
  for (DType type : {DType::f32, DType::bf16})
    for (const auto& [m, n] : {std::array{20, 33}, {40, 64}}) {
      Case c = gpu_case();
      c.tuning = {{"splits", 4}, {"bm", 32}, {"bn", 32}};
      if (type == DType::bf16) c.tolerance = 4e-2;
      NodeId y = c.b.matmul(c.input({m, 1100}, type), c.input({1100, n}, type));
      c.output(c.b.relu(c.b.add(y, c.input({m, n}, type))));
      ASSERT_NO_FATAL_FAILURE(check(c));
      EXPECT_NE(c.schedule.find("splits=4"), std::string::npos) << c.schedule;
    }
}

// Warpgroups multiply asynchronously, on sm_90a; threads or the copy engine bring tiles past them.
TEST(GpuContract, Warpgroups) {
  for (int unit : {2, 3})
    for (DType type : {DType::bf16, DType::f16})
      for (const auto& [m, n, k] : {std::array{128, 64, 64}, {150, 72, 200}, {130, 200, 456}})
        for (bool constant : {true, false}) {
          Case c = gpu_case();
          c.target.warpgroups = true;
          c.target.multiprocessors = 3;
          c.tuning = {{"unit", unit}};
          if (k == 456) c.tuning = {{"unit", unit}, {"bm", 128}, {"bn", 256}};
          const NodeId x = c.input({m, k}, type);
          const NodeId w =
              constant ? c.constant({k, n}, type) : c.b.transpose(c.input({n, k}, type), {1, 0});
          NodeId y = c.b.matmul(x, w);
          c.output(c.b.relu(c.b.add(y, c.b.broadcast(c.input({n}, type), {m, n}))));
          c.tolerance = 2e-2;
          SCOPED_TRACE(fmt::format("{} {}x{}x{} {}", name_of(type), m, n, k, constant));
          ASSERT_NO_FATAL_FAILURE(check(c));
          EXPECT_NE(c.schedule.find(unit == 2 ? "wgmma" : "tma"), std::string::npos) << c.schedule;
        }
}

// The copy engine takes slices, batches and padded rows; what it cannot take, threads copy.
TEST(GpuContract, Tiles) {
  for (int which = 0; which < 4; ++which) {
    Case c = gpu_case();
    c.target.warpgroups = true;
    c.target.multiprocessors = 2;
    c.tuning = {{"unit", 3}};
    c.tolerance = 2e-2;
    const DType type = DType::bf16;
    if (which == 0) {  // heads of a projection: slices, two batch dimensions
      const NodeId all = c.input({2, 136, 3, 2, 64}, type);
      const auto part = [&](std::int64_t i) {
        const NodeId one = c.b.slice(all, {0, 0, i, 0, 0}, {2, 136, 1, 2, 64}, {1, 1, 1, 1, 1});
        return c.b.transpose(c.b.reshape(one, {2, 136, 2, 64}), {0, 2, 1, 3});
      };
      c.output(c.b.matmul(part(1), c.b.transpose(part(2), {0, 1, 3, 2})));
    } else if (which == 1) {  // long reductions in several blocks
      c.tuning.emplace_back("splits", 4);
      const NodeId w = c.b.transpose(c.input({72, 1096}, type), {1, 0});
      c.output(c.b.relu(c.b.matmul(c.input({130, 1096}, type), w)));
    } else if (which == 2) {  // one operand for all batches
      const NodeId w = c.b.broadcast(c.constant({104, 88}, type), {3, 104, 88});
      c.output(c.b.matmul(c.input({3, 129, 104}, type), w));
    } else {  // rows that no tile can begin at
      const NodeId w = c.b.transpose(c.input({72, 100}, type), {1, 0});
      c.output(c.b.matmul(c.input({130, 100}, type), w));
    }
    SCOPED_TRACE(which);
    ASSERT_NO_FATAL_FAILURE(check(c));
    EXPECT_EQ(c.schedule.find("tma") != std::string::npos, which < 3) << c.schedule;
  }
}

// Few rows: the other side is streamed, along the reductions or along its rows.
TEST(GpuContract, FewRows) {
  for (DType type : {DType::f32, DType::bf16})
    for (int which = 0; which < 4; ++which)
      for (const auto& [m, n, k] :
           {std::array{1, 40, 96}, {1, 33, 50}, {5, 300, 80}, {8, 17, 1000}}) {
        Case c = gpu_case();
        c.target.multiprocessors = 2;
        const bool other = which & 1, tb = which & 2;
        NodeId x = c.input({m, k}, type), w = c.input(tb ? Shape{n, k} : Shape{k, n}, type);
        if (tb) w = c.b.transpose(w, {1, 0});
        NodeId y = c.b.matmul(x, w);
        if (other) y = c.b.transpose(y, {1, 0});
        c.row_major_outputs = true;
        c.output(c.b.relu(y));
        SCOPED_TRACE(fmt::format("{} {}x{}x{} {}", name_of(type), m, n, k, which));
        const auto space = contract::tuning_space(request_of(c));
        for (const Tuning& t : space) {
          c.tuning = t;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
        EXPECT_NE(c.schedule.find("stream"), std::string::npos) << c.schedule;
      }
}

TEST(GpuContract, Types) {
  for (DType type : {DType::f64, DType::i32, DType::i64}) {
    Case c = gpu_case();
    c.output(c.b.matmul(c.input({9, 11}, type), c.input({11, 19}, type)));
    SCOPED_TRACE(name_of(type));
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

TEST(GpuContract, BatchesThroughViews) {
  for (DType type : {DType::f32, DType::bf16}) {
    Case c = gpu_case();
    const NodeId q = c.input({2, 9, 24}, type), k = c.input({2, 9, 24}, type);
    const NodeId heads_q = c.b.transpose(c.b.reshape(q, {2, 9, 3, 8}), {0, 2, 1, 3});
    const NodeId heads_k = c.b.transpose(c.b.reshape(k, {2, 9, 3, 8}), {0, 2, 3, 1});
    c.output(c.b.mul(c.b.matmul(heads_q, heads_k), 0.5));
    ASSERT_NO_FATAL_FAILURE(check(c));
    Case d = gpu_case();
    const NodeId p = d.input({2, 3, 9, 9}, type), v = d.input({2, 9, 24}, type);
    const NodeId heads_v = d.b.transpose(d.b.reshape(v, {2, 9, 3, 8}), {0, 2, 1, 3});
    const NodeId out = d.b.matmul(p, heads_v);
    d.output(d.b.reshape(d.b.transpose(out, {0, 2, 1, 3}), {2, 9, 24}));
    ASSERT_NO_FATAL_FAILURE(check(d));
  }
}

struct SumCase {
  const char* what;
  DType type;
  std::array<int, 3> mnk;
  Tuning tuning;
};

/// Sums over rows, over columns and over both ride in the epilogues of all units: tiles that are
/// not whole, fewer rows or columns than a tile, one part or several, reductions that blocks share.
TEST(GpuContract, SumsInTheEpilogue) {
  const SumCase rows[] = {
      {"scalar", DType::f32, {29, 18, 21}, {}},
      {"scalar", DType::f32, {70, 75, 40}, {{"bm", 32}, {"bn", 32}}},
      {"scalar", DType::f32, {133, 66, 17}, {{"bm", 64}, {"bn", 64}}},
      {"splits=4", DType::f32, {37, 50, 1100}, {{"splits", 4}, {"bm", 32}, {"bn", 32}}},
      {"mma", DType::bf16, {70, 72, 48}, {{"bm", 32}, {"bn", 32}}},
      {"mma", DType::bf16, {29, 21, 40}, {}},
      {"mma", DType::f16, {45, 150, 33}, {{"bm", 16}, {"bn", 64}}},
      {"mma", DType::bf16, {140, 300, 40}, {{"unit", 1}, {"bm", 128}, {"bn", 256}}},
      {"mma", DType::f32, {45, 41, 50}, {{"tf32", 1}}},
      {"splits=4", DType::bf16, {41, 66, 1100}, {{"splits", 4}, {"bm", 32}, {"bn", 32}}},
      {"wgmma", DType::bf16, {150, 72, 200}, {{"unit", 2}}},
      {"tma", DType::bf16, {150, 72, 200}, {{"unit", 3}}},
      {"tma", DType::bf16, {201, 264, 72}, {{"unit", 3}, {"bm", 128}, {"bn", 256}}},
      {"tma", DType::bf16, {130, 72, 1096}, {{"unit", 3}, {"splits", 4}}},
      {"stream", DType::f32, {5, 300, 80}, {}},
      {"stream", DType::f32, {300, 5, 80}, {}},
      {"stream", DType::bf16, {300, 3, 80}, {}},
      {"stream", DType::f32, {1, 301, 80}, {}},
  };
  for (const SumCase& row : rows) {
    const auto [m, n, k] = row.mnk;
    Case c = gpu_case();
    c.target.multiprocessors = 3;
    c.target.warpgroups = true;
    c.tuning = row.tuning;
    c.tolerance = row.type != DType::f32 ? 4e-2 : row.what == std::string("mma") ? 2e-2 : 1e-4;
    const NodeId x = c.input({m, k}, row.type),
                 w = c.b.transpose(c.input({n, k}, row.type), {1, 0});
    const NodeId y = c.b.cast(c.b.matmul(x, w), DType::f32);
    const NodeId z = c.b.mul(y, c.input({m, n}));
    c.output(y);
    c.output(c.b.reduce_sum(y, {0}, false));
    c.output(c.b.reduce_sum(z, {1}, false));
    c.output(c.b.reduce_sum(z, {0}, false));
    c.output(c.b.reduce(ir::Monoid::max, z, {1}, false));
    c.output(c.b.reduce_sum(c.b.mul(y, y), {0, 1}, false));
    SCOPED_TRACE(fmt::format("{} {} {}x{}x{}", row.what, name_of(row.type), m, n, k));
    ASSERT_NO_FATAL_FAILURE(check(c));
    EXPECT_NE(c.schedule.find(row.what), std::string::npos) << c.schedule;
  }
}

/// Of batches: each its own, or all together; a bias of heads keeps some batch axes.
TEST(GpuContract, SumsOfBatches) {
  for (const std::vector<int>& axes :
       {std::vector{2}, {3}, {0, 2}, {0, 3}, {0, 1, 2}, {1, 3}, {0, 1, 2, 3}, {2, 3}, {0, 2, 3}})
    for (const int keys : {19, 140}) {
      Case c = gpu_case();
      const NodeId q = c.input({3, 2, 37, 9}), k = c.input({3, 2, keys, 9});
      const NodeId y = c.b.matmul(q, c.b.transpose(k, {0, 1, 3, 2}));
      c.output(y);
      c.output(c.b.reduce_sum(y, axes, false));
      c.tolerance = 2e-4;
      SCOPED_TRACE(fmt::format("{} over {}", keys, fmt::join(axes, ",")));
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  Case heads = gpu_case();
  const NodeId p = heads.input({3, 2, 21, 21}), v = heads.input({3, 2, 21, 8});
  const NodeId merged =
      heads.b.reshape(heads.b.transpose(heads.b.matmul(p, v), {0, 2, 1, 3}), {3, 21, 16});
  heads.output(merged);
  heads.output(heads.b.reduce_sum(merged, {0, 1}, false));
  ASSERT_NO_FATAL_FAILURE(check(heads));
}

/// A convolution's channels are rows or columns of its product, as its result lies.
TEST(GpuContract, SumsOfConvolutions) {
  for (const bool row_major : {false, true}) {
    Case c = gpu_case();
    const NodeId x = c.input({3, 8, 9, 7});
    const NodeId y = c.b.conv(x, c.input({20, 8, 3, 3}), conv(2, 1, 1));
    c.row_major_outputs = row_major;
    c.output(y);
    c.output(c.b.reduce_sum(y, {0, 2, 3}, false));
    c.output(c.b.reduce_sum(c.b.mul(y, y), {1}, false));
    c.tolerance = 1e-4;
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

/// Some of the rows, integers, positions, or a sum that something in the kernel reads.
TEST(GpuContract, SumsThatAreNone) {
  const auto supported = [](auto&& make) {
    Case c = gpu_case();
    const NodeId y = c.b.matmul(c.input({29, 18}), c.input({18, 32}));
    c.output(y);
    make(c, y);
    return contract::supports(c.g, request_of(c).cluster, c.target);
  };
  EXPECT_TRUE(supported([](Case& c, NodeId y) { c.output(c.b.reduce_sum(y, {1}, false)); }));
  EXPECT_TRUE(
      supported([](Case& c, NodeId y) { c.output(c.b.reduce(ir::Monoid::max, y, {0}, false)); }));
  EXPECT_FALSE(supported([](Case& c, NodeId y) {
    c.output(c.b.reduce_sum(c.b.reshape(y, {29, 4, 8}), {1}, false));
  }));
  EXPECT_FALSE(supported(
      [](Case& c, NodeId y) { c.output(c.b.reduce(ir::Monoid::argmax, y, {1}, false)); }));
  EXPECT_FALSE(
      supported([](Case& c, NodeId y) { c.output(c.b.sqrt(c.b.reduce_sum(y, {0}, false))); }));
}

TEST(GpuContract, Epilogues) {
  for (DType type : {DType::f32, DType::bf16})
    for (int which = 0; which < 6; ++which) {
      Case c = gpu_case();
      const NodeId x = c.input({14, 10}, type), w = c.constant({10, 24}, type);
      NodeId y = c.b.add(c.b.matmul(x, w), c.b.broadcast(c.constant({24}, type), {14, 24}));
      if (which == 1) y = c.b.relu(y);
      if (which == 2) y = gelu(c.b, y);
      if (which == 3) y = c.b.add(gelu(c.b, y), c.input({14, 24}, type));
      if (which == 4) y = c.b.transpose(c.b.reshape(y, {14, 3, 8}), {1, 0, 2});
      if (which == 5) {
        c.output(y);
        c.output(gelu(c.b, y));
        y = c.b.mul(y, c.input({14, 1}, type));
      }
      c.output(y);
      for (bool row_major : {false, true}) {
        c.row_major_outputs = row_major;
        SCOPED_TRACE(fmt::format("{} {}", name_of(type), which));
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
    }
}

TEST(GpuContract, Convolutions) {
  struct Row {
    Shape x, w;
    Builder::Conv conv;
  };
  const Row rows[] = {
      {{1, 5, 17}, {12, 5, 3}, conv(1, 1, 1)},
      {{2, 4, 9, 7}, {8, 4, 3, 3}, conv(2, 1, 1)},
      {{1, 8, 8, 8}, {16, 8, 1, 1}, conv(2, 1, 0)},
      {{1, 3, 15, 15}, {8, 3, 7, 7}, conv(2, 2, 3)},
      {{1, 16, 9, 9}, {16, 16, 3, 3}, conv(2, 1, 2, 2)},
      {{2, 6, 7, 7}, {12, 3, 3, 3}, conv(2, 1, 1, 1, 2)},
      {{1, 3, 5, 6, 4}, {8, 3, 3, 3, 3}, conv(3, 1, 1)},
  };
  for (DType type : {DType::f32, DType::bf16})
    for (const Row& row : rows)
      for (bool channels_last : {false, true}) {
        Case c = gpu_case();
        const NodeId x = c.input(row.x, type);
        if (channels_last) {
          std::vector<int> order{0};
          for (std::size_t d = 2; d < row.x.size(); ++d) order.push_back(static_cast<int>(d));
          order.push_back(1);
          c.layouts[x] = ordered(row.x, order);
        }
        c.row_major_outputs = !channels_last;
        c.output(c.b.relu(c.b.conv(x, c.constant(row.w, type), row.conv)));
        SCOPED_TRACE(fmt::format("{} {} {} {}", name_of(type), to_string(row.x), to_string(row.w),
                                 channels_last));
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

TEST(GpuContract, Prologues) {
  for (DType type : {DType::f32, DType::bf16}) {
    Case c = gpu_case();
    const NodeId x = c.input({1, 8, 6, 6}, type);
    const NodeId scale =
        c.b.broadcast(c.b.reshape(c.constant({8}, type), {1, 8, 1, 1}), {1, 8, 6, 6});
    c.output(c.b.conv(c.b.relu(c.b.mul(x, scale)), c.constant({8, 8, 3, 3}, type), conv(2, 1, 1)));
    ASSERT_NO_FATAL_FAILURE(check(c));
    Case d = gpu_case();
    const NodeId u = d.input({9, 16}, type), v = d.input({16, 24}, type);
    d.output(d.b.matmul(d.b.exp(u), d.b.tanh(v)));
    ASSERT_NO_FATAL_FAILURE(check(d));
  }
}

TEST(GpuContractFuzz, RandomShapes) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  for (int i = 0; std::chrono::steady_clock::now() < deadline; ++i) {
    Case c = gpu_case();
    c.random.seed(random());
    c.target.multiprocessors = pick(1, 16);
    const DType type = std::array{DType::f32, DType::bf16, DType::f16}[i % 3];
    std::string what;
    if (pick(0, 1)) {
      const int m = pick(2, 80), n = pick(4, 90), k = pick(2, 150), batch = pick(1, 3);
      NodeId x = c.input({batch, m, k}, type);
      NodeId w = pick(0, 1) ? c.constant({k, n}, type) : c.input({batch, k, n}, type);
      what = fmt::format("matmul {} {}x{}x{}", batch, m, n, k);
      c.output(c.b.relu(c.b.matmul(x, w)));
    } else {
      const int groups = pick(1, 2), ci = groups * pick(1, 8), co = groups * pick(4, 20);
      const int kh = pick(1, 3), kw = pick(1, 3), h = pick(5, 12), w = pick(5, 14);
      auto p = conv(2, pick(1, 2), 0, pick(1, 2), groups);
      p.pads_begin = {pick(0, 2), pick(0, 2)};
      p.pads_end = {pick(0, 2), pick(0, 2)};
      if (p.dilations[0] * (kh - 1) + 1 > h || p.dilations[0] * (kw - 1) + 1 > w) continue;
      const Shape shape{pick(1, 2), ci, h, w};
      const NodeId x = c.input(shape, type);
      if (pick(0, 1)) c.layouts[x] = ordered(shape, {0, 2, 3, 1});
      c.row_major_outputs = pick(0, 1);
      what = fmt::format("conv {} -> {} {}x{}", to_string(shape), co, kh, kw);
      c.output(c.b.relu(c.b.conv(x, c.constant({co, ci / groups, kh, kw}, type), p)));
    }
    if (!contract::supports(c.g, request_of(c).cluster, c.target)) continue;
    const auto space = contract::tuning_space(request_of(c));
    c.tuning = space[static_cast<std::size_t>(pick(0, static_cast<int>(space.size()) - 1))];
    SCOPED_TRACE(fmt::format("seed {} case {}: {}", seed, i, what));
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

}  // namespace
}  // namespace heddle::lower
