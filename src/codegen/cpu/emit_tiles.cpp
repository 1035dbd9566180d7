// Products of matrices in tile registers (Intel's Architecture Instruction Set Extensions
// Programming Reference, chapter "Intel AMX").
#include <llvm/IR/IntrinsicsX86.h>

#include <algorithm>
#include <array>

#include "codegen/cpu/emitter.h"
#include "codegen/cpu/target.h"
#include "kernel/traverse.h"

namespace heddle::codegen::cpu {

using namespace kernel;

namespace {

constexpr int kRowBytes = TileProduct::kRowBytes;

/// Which tile register holds what: accumulators row by row, then the rows' tiles, then the columns'
/// in turn.
struct Registers {
  int rows, columns;
  int free() const { return TileProduct::kRegisters - rows * columns - rows; }
  int acc(int i, int j) const { return i * columns + j; }
  int a(int i) const { return rows * columns + i; }
  int b(int j) const { return rows * columns + rows + j % free(); }
};

llvm::Intrinsic::ID product_of(DType a, DType b) {
  if (a == DType::bf16) return llvm::Intrinsic::x86_tdpbf16ps;
  if (a == DType::u8)
    return b == DType::u8 ? llvm::Intrinsic::x86_tdpbuud : llvm::Intrinsic::x86_tdpbusd;
  return b == DType::u8 ? llvm::Intrinsic::x86_tdpbsud : llvm::Intrinsic::x86_tdpbssd;
}

int rows_of(const TileProduct& x, int tile) { return std::min(x.height, x.rows - tile * x.height); }

/// The 64 bytes that LDTILECFG reads, palette 1.
std::array<std::uint8_t, 64> configuration_of(const TileProduct& x) {
  constexpr std::size_t kWidths = 16, kHeights = 48;  // first byte of each
  const Registers reg{x.tile_rows(), x.tile_columns()};
  std::array<std::uint8_t, 64> bytes{};
  bytes[0] = 1;
  const auto set = [&](int tile, int rows, int row_bytes) {
    bytes[kWidths + 2 * static_cast<std::size_t>(tile)] = static_cast<std::uint8_t>(row_bytes);
    bytes[kHeights + static_cast<std::size_t>(tile)] = static_cast<std::uint8_t>(rows);
  };
  for (int i = 0; i < reg.rows; ++i) {
    for (int j = 0; j < reg.columns; ++j) set(reg.acc(i, j), rows_of(x, i), kRowBytes);
    set(reg.a(i), rows_of(x, i), x.row_bytes);
  }
  for (int j = 0; j < std::min(reg.columns, reg.free()); ++j)
    set(reg.b(j), x.row_bytes / 4, kRowBytes);
  return bytes;
}

}  // namespace

void Emitter::configure_tiles(const TileProduct& x) {
  const std::array<std::uint8_t, 64> bytes = configuration_of(x);
  auto* data =
      llvm::ConstantDataArray::get(module_.getContext(), llvm::ArrayRef<std::uint8_t>(bytes));
  auto* global = new llvm::GlobalVariable(module_, data->getType(), true,
                                          llvm::GlobalValue::PrivateLinkage, data, "tiles");
  global->setAlignment(llvm::Align(64));
  b_.CreateIntrinsic(llvm::Intrinsic::x86_ldtilecfg, {}, {llvm::cast<llvm::Value>(global)});
}

void Emitter::release_tiles() { b_.CreateIntrinsic(llvm::Intrinsic::x86_tilerelease, {}, {}); }

/// Products of one shape share a configuration, which takes as long as many products of tiles.
void Emitter::prepare_tiles(const Body& body) {
  std::vector<const TileProduct*> all;
  for_each_stmt(body, [&](const Stmt& s) {
    if (const auto* x = std::get_if<TileProduct>(&s.op)) all.push_back(x);
  });
  if (all.empty()) return;
  b_.CreateCall(
      module_.getOrInsertFunction(kPermitTiles, llvm::FunctionType::get(b_.getVoidTy(), false)));
  tiles_configured_ = std::all_of(all.begin(), all.end(), [&](const TileProduct* x) {
    return configuration_of(*x) == configuration_of(*all.front());
  });
  if (tiles_configured_) configure_tiles(*all.front());
}

/// The accumulators: zeros, or what memory has of them, in registers; and back.
void Emitter::move_sums(const TileProduct& x, bool load) {
  const Registers reg{x.tile_rows(), x.tile_columns()};
  V acc = address(x.acc.value, bound(x.to));
  V stride = b_.getInt64(static_cast<std::uint64_t>(x.columns) * 4);
  for (int i = 0; i < reg.rows; ++i)
    for (int j = 0; j < reg.columns; ++j) {
      const std::int64_t first = std::int64_t{i} * x.height * x.columns + j * TileProduct::kColumns;
      V place = bytes_from(acc, first * 4);
      V number = b_.getInt8(static_cast<std::uint8_t>(reg.acc(i, j)));
      if (!load)
        b_.CreateIntrinsic(llvm::Intrinsic::x86_tilestored64, {}, {number, place, stride});
      else if (x.add)
        b_.CreateIntrinsic(llvm::Intrinsic::x86_tileloadd64, {}, {number, place, stride});
      else
        b_.CreateIntrinsic(llvm::Intrinsic::x86_tilezero, {}, {number});
    }
}

void Emitter::begin_tiles(const TileProduct& x) {
  HEDDLE_CHECK(!vector_, "'{}': tiles in a vector loop", k_.name);
  if (!tiles_configured_) configure_tiles(x);
  move_sums(x, true);
}

void Emitter::end_tiles(const TileProduct& x) {
  move_sums(x, false);
  if (!tiles_configured_) release_tiles();
  touch({x.acc.value});
}

Emitter::V Emitter::bytes_from(V from, std::int64_t count) {
  return b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), from, static_cast<std::uint64_t>(count));
}

/// The first line of the page behind this one's. Later steps ask for it again, which costs nothing.
Emitter::V Emitter::page_behind(V line) {
  constexpr std::int64_t kPage = 4096;
  V behind = b_.CreateConstGEP1_64(b_.getInt8Ty(), line, kPage);  // or outside the buffer
  return b_.CreateIntrinsic(llvm::Intrinsic::ptrmask, {b_.getPtrTy(), b_.getInt64Ty()},
                            {behind, b_.getInt64(static_cast<std::uint64_t>(-kPage))});
}

/// One step along the depth: every term of it. `a` and `b`: where the operands begin.
void Emitter::step_of_tiles(const TileProduct& x, V a, V b, V step) {
  const Registers reg{x.tile_rows(), x.tile_columns()};
  const auto tile = [&](int number) { return b_.getInt8(static_cast<std::uint8_t>(number)); };
  const auto at = [&](V base, std::int64_t apart) {
    return b_.CreateInBoundsGEP(b_.getInt8Ty(), base,
                                b_.CreateMul(step, b_.getInt64(static_cast<std::uint64_t>(apart))));
  };
  const std::int64_t a_bytes = size_of(buffer(x.a.buffer.value).dtype);
  V a_here = at(a, x.a.step * a_bytes), b_here = at(b, x.b.step * 4);
  for (const TileProduct::Operand::Run& run : x.a.runs) {
    V lines = b_.CreateUDiv(step, b_.getInt64(static_cast<std::uint64_t>(run.steps)));
    V further = b_.CreateMul(lines, b_.getInt64(static_cast<std::uint64_t>(run.further * a_bytes)));
    a_here = b_.CreateInBoundsGEP(b_.getInt8Ty(), a_here, further);
  }
  const auto load = [&](int number, V base, std::int64_t offset, std::int64_t pitch) {
    b_.CreateIntrinsic(
        llvm::Intrinsic::x86_tileloadd64, {},
        {tile(number), bytes_from(base, offset), b_.getInt64(static_cast<std::uint64_t>(pitch))});
  };
  struct Line {
    V from;
    std::int64_t offset;
    int locality;  // LLVM's: 3 for the first-level cache, 2 for the second
  };
  std::vector<Line> lines;
  constexpr std::int64_t kAhead = 2;
  if (x.ahead)
    for (int row = 0; row < x.rows; ++row)
      lines.push_back({a_here,
                       kAhead * x.a.step * a_bytes +
                           (row / x.height * x.a.block + row % x.height * x.a_row) * a_bytes,
                       3});
  for (const TileProduct::Fetch& f : x.fetches) {
    const std::int64_t rows = f.rows_of_step(x.steps()),
                       pitch = f.pitch * size_of(buffer(f.buffer.value).dtype);
    V first = at(address(f.buffer.value, bound(f.offset)), rows * pitch);
    if (f.page) lines.push_back({page_behind(first), 0, 2});
    for (std::int64_t row = 0; row < rows; ++row)
      for (int line = 0; line < f.lines; ++line)
        lines.push_back({first, row * pitch + line * kRowBytes, f.far ? 2 : 3});
  }
  const llvm::Intrinsic::ID multiply = product_of(x.a.type, x.b.type);
  std::size_t fetched = 0, done = 0;
  const auto products = x.terms.size() * static_cast<std::size_t>(reg.columns);
  const TileProduct::Term* last = nullptr;
  for (const TileProduct::Term& t : x.terms) {
    if (!last || last->a != t.a)
      for (int i = 0; i < reg.rows; ++i)
        load(reg.a(i), a_here, (t.a + i * x.a.block) * a_bytes, x.a_row * a_bytes);
    for (int j = 0; j < reg.columns; ++j) {
      if (!last || last->b != t.b || reg.columns > reg.free())
        load(reg.b(j), b_here, (t.b + j * x.b.block) * 4, kRowBytes);
      for (int i = 0; i < reg.rows; ++i)
        b_.CreateIntrinsic(multiply, {}, {tile(reg.acc(i, j)), tile(reg.a(i)), tile(reg.b(j))});
      for (++done; fetched < lines.size() * done / products; ++fetched)
        prefetch(bytes_from(lines[fetched].from, lines[fetched].offset), lines[fetched].locality);
    }
    last = &t;
  }
}

void Emitter::tiles(const TileProduct& x) {
  const auto operand = [&](const TileProduct::Operand& o) {
    return address(o.buffer.value, bound(o.offset));
  };
  V a = operand(x.a), b = operand(x.b);
  // A single step is no loop's, but the product.
  if (x.along && x.steps() > 1)
    return step_of_tiles(x, a, b, phis_[static_cast<std::size_t>(x.along->index)]);
  begin_tiles(x);
  auto* from = b_.GetInsertBlock();
  auto* block = llvm::BasicBlock::Create(module_.getContext(), block_name("tiles"), function_);
  auto* exit = llvm::BasicBlock::Create(module_.getContext(), block_name("end"), function_);
  b_.CreateBr(block);
  b_.SetInsertPoint(block);
  llvm::PHINode* step = b_.CreatePHI(b_.getInt64Ty(), 2, "step");
  step_of_tiles(x, a, b, step);
  V next = b_.CreateAdd(step, b_.getInt64(1), "", true, true);
  step->addIncoming(b_.getInt64(0), from);
  step->addIncoming(next, block);
  const auto steps = static_cast<std::uint64_t>(x.steps());
  b_.CreateCondBr(b_.CreateICmpULT(next, b_.getInt64(steps)), block, exit);
  b_.SetInsertPoint(exit);
  end_tiles(x);
}

}  // namespace heddle::codegen::cpu
