// Products of matrices in tile registers (Intel's Architecture Instruction Set Extensions
// Programming Reference, chapter "Intel AMX").
#include <llvm/IR/IntrinsicsX86.h>

#include <algorithm>
#include <array>

#include "codegen/cpu/emitter.h"

namespace heddle::codegen::cpu {

using namespace kernel;

namespace {

constexpr int kRowBytes = 64;  // of a tile register

/// Which tile register holds what: accumulators row by row, then the rows' tiles, then the columns'
/// in turn.
struct Registers {
  int rows, columns;
  int free() const { return TileProduct::kRegisters - rows * columns - rows; }
  int acc(int i, int j) const { return i * columns + j; }
  int a(int i) const { return rows * columns + i; }
  int b(int j) const { return rows * columns + rows + j % free(); }
};

int rows_of(const TileProduct& x, int tile) {
  return std::min(TileProduct::kRows, x.rows - tile * TileProduct::kRows);
}

}  // namespace

/// The 64 bytes that LDTILECFG reads, palette 1.
Emitter::V Emitter::tile_configuration(const TileProduct& x) {
  constexpr std::size_t kWidths = 16, kHeights = 48;  // first byte of each
  const Registers reg{x.tile_rows(), x.tile_columns()};
  std::array<std::uint8_t, 64> bytes{};
  bytes[0] = 1;
  const auto set = [&](int tile, int rows) {
    bytes[kWidths + 2 * static_cast<std::size_t>(tile)] = kRowBytes;
    bytes[kHeights + static_cast<std::size_t>(tile)] = static_cast<std::uint8_t>(rows);
  };
  for (int i = 0; i < reg.rows; ++i) {
    for (int j = 0; j < reg.columns; ++j) set(reg.acc(i, j), rows_of(x, i));
    set(reg.a(i), rows_of(x, i));
  }
  for (int j = 0; j < std::min(reg.columns, reg.free()); ++j)
    set(reg.b(j), TileProduct::kDepth / 2);
  auto* data = llvm::ConstantDataArray::get(module_.getContext(), bytes);
  auto* global = new llvm::GlobalVariable(module_, data->getType(), true,
                                          llvm::GlobalValue::PrivateLinkage, data, "tiles");
  global->setAlignment(llvm::Align(64));
  return global;
}

void Emitter::tiles(const TileProduct& x) {
  HEDDLE_CHECK(!vector_, "'{}': tiles in a vector loop", k_.name);
  const Registers reg{x.tile_rows(), x.tile_columns()};
  const auto tile = [&](int number) { return b_.getInt8(static_cast<std::uint8_t>(number)); };
  const auto bytes = [&](V from, std::int64_t count) {
    return b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), from, static_cast<std::uint64_t>(count));
  };
  V a = address(x.a.buffer.value, bound(x.a.offset)),
    b = address(x.b.buffer.value, bound(x.b.offset));
  V acc = address(x.acc.value, bound(x.to));
  b_.CreateIntrinsic(llvm::Intrinsic::x86_ldtilecfg, {}, {tile_configuration(x)});
  V stride = b_.getInt64(static_cast<std::uint64_t>(x.columns) * 4);
  const auto each = [&](const std::function<void(int number, V place)>& f) {
    for (int i = 0; i < reg.rows; ++i)
      for (int j = 0; j < reg.columns; ++j) {
        const std::int64_t first =
            std::int64_t{i} * TileProduct::kRows * x.columns + j * TileProduct::kColumns;
        f(reg.acc(i, j), bytes(acc, first * 4));
      }
  };
  each([&](int number, V place) {
    if (x.add)
      b_.CreateIntrinsic(llvm::Intrinsic::x86_tileloadd64, {}, {tile(number), place, stride});
    else
      b_.CreateIntrinsic(llvm::Intrinsic::x86_tilezero, {}, {tile(number)});
  });

  // One step along the depth in each turn: every term of it.
  auto* from = b_.GetInsertBlock();
  auto* block = llvm::BasicBlock::Create(module_.getContext(), block_name("tiles"), function_);
  auto* exit = llvm::BasicBlock::Create(module_.getContext(), block_name("end"), function_);
  b_.CreateBr(block);
  b_.SetInsertPoint(block);
  llvm::PHINode* step = b_.CreatePHI(b_.getInt64Ty(), 2, "step");
  const auto at = [&](V base, std::int64_t apart) {
    return b_.CreateInBoundsGEP(b_.getInt8Ty(), base,
                                b_.CreateMul(step, b_.getInt64(static_cast<std::uint64_t>(apart))));
  };
  V a_here = at(a, x.a.step * 2), b_here = at(b, x.b.step * 4);
  const auto load = [&](int number, V base, std::int64_t offset) {
    b_.CreateIntrinsic(llvm::Intrinsic::x86_tileloadd64, {},
                       {tile(number), bytes(base, offset), b_.getInt64(kRowBytes)});
  };
  std::vector<std::pair<V, std::int64_t>> lines;  // of a step
  for (const TileProduct::Fetch& f : x.fetches) {
    const std::int64_t rows = f.rows_of_step(x.depth),
                       pitch = f.pitch * size_of(buffer(f.buffer.value).dtype);
    V first = at(address(f.buffer.value, bound(f.offset)), rows * pitch);
    for (std::int64_t row = 0; row < rows; ++row)
      for (int line = 0; line < f.lines; ++line)
        lines.emplace_back(first, row * pitch + line * kRowBytes);
  }
  std::size_t fetched = 0, done = 0;
  const auto products = x.terms.size() * static_cast<std::size_t>(reg.columns);
  const TileProduct::Term* last = nullptr;
  for (const TileProduct::Term& t : x.terms) {
    if (!last || last->a != t.a)
      for (int i = 0; i < reg.rows; ++i) load(reg.a(i), a_here, (t.a + i * x.a.block) * 2);
    for (int j = 0; j < reg.columns; ++j) {
      if (!last || last->b != t.b || reg.columns > reg.free())
        load(reg.b(j), b_here, (t.b + j * x.b.block) * 4);
      for (int i = 0; i < reg.rows; ++i)
        b_.CreateIntrinsic(llvm::Intrinsic::x86_tdpbf16ps, {},
                           {tile(reg.acc(i, j)), tile(reg.a(i)), tile(reg.b(j))});
      for (++done; fetched < lines.size() * done / products; ++fetched)
        prefetch(bytes(lines[fetched].first, lines[fetched].second), 3);
    }
    last = &t;
  }
  V next = b_.CreateAdd(step, b_.getInt64(1), "", true, true);
  step->addIncoming(b_.getInt64(0), from);
  step->addIncoming(next, block);
  const auto steps = static_cast<std::uint64_t>(x.depth / TileProduct::kDepth);
  b_.CreateCondBr(b_.CreateICmpULT(next, b_.getInt64(steps)), block, exit);
  b_.SetInsertPoint(exit);

  each([&](int number, V place) {
    b_.CreateIntrinsic(llvm::Intrinsic::x86_tilestored64, {}, {tile(number), place, stride});
  });
  b_.CreateIntrinsic(llvm::Intrinsic::x86_tilerelease, {}, {});
  touch({x.acc.value});
}

}  // namespace heddle::codegen::cpu
