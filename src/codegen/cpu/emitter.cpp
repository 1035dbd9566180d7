#include "codegen/cpu/emitter.h"

#include <algorithm>

#include "codegen/cpu/target.h"
#include "kernel/traverse.h"
#include "support/hash.h"
#include "support/match.h"

namespace heddle::codegen::cpu {

using namespace kernel;

std::size_t Emitter::ValueKeyHash::operator()(const ValueKey& k) const {
  std::size_t h = std::hash<const void*>{}(k.node);
  for (const std::int64_t c : k.constants) h = combine(h, static_cast<std::size_t>(c));
  return h;
}

Emitter::Emitter(llvm::Module& module, const Kernel& k, const Machine& m, Analysis& analysis)
    : module_(module),
      k_(k),
      machine_(m),
      analysis_(analysis),
      b_(module.getContext()),
      // All x86 machines with AVX2 have FMA and F16C, and so have 64-bit ARM's.
      ops_(module, b_, m.vector_bytes >= 32 || !llvm::StringRef(m.triple).starts_with("x86_64"),
           llvm::StringRef(m.triple).starts_with("x86_64") ? m.vector_bytes : 0, m.quads,
           m.bf16_pairs, [this](V condition, const Ops::Make& then, const Ops::Make& otherwise) {
             return branch_value(condition, then, otherwise);
           }) {
  const auto variables = static_cast<std::size_t>(k.variables);
  bases_.resize(static_cast<std::size_t>(k.buffers.size()));
  stored_.resize(static_cast<std::size_t>(k.buffers.size()));
  bound_.resize(variables);
  unrolled_.resize(variables);
  tested_.resize(variables);
  phis_.resize(variables);
  levels_.resize(variables);
  ranges_.resize(variables);
  std::int64_t vectors = 0;
  for (const Buffer& b : k.buffers)
    if (b.scope == kernel::Scope::lane)
      vectors = std::max(vectors, b.size * size_of(b.dtype) / m.vector_bytes);
  crowded_ = vectors > m.vector_registers / 2;
  llvm::FastMathFlags flags;
  flags.setAllowContract();
  b_.setFastMathFlags(flags);
}

llvm::Function* Emitter::emit(const For& grid, const std::string& name,
                              const std::vector<std::int32_t>& buffers,
                              const std::vector<std::int32_t>& streamed) {
  streamed_ = streamed;
  llvm::SmallVector<llvm::Type*> types;
  for (const std::int32_t id : buffers) {
    if (!in_registers(id)) types.push_back(b_.getPtrTy());
  }
  types.append(2, b_.getInt64Ty());
  function_ = llvm::Function::Create(llvm::FunctionType::get(b_.getVoidTy(), types, false),
                                     llvm::Function::InternalLinkage, name, module_);
  b_.SetInsertPoint(llvm::BasicBlock::Create(module_.getContext(), "entry", function_));
  scopes_ = {std::make_shared<Scope>()};
  prepare_tiles(*grid.body);
  bind_parameters(function_, buffers);
  V begin = function_->getArg(static_cast<unsigned>(types.size()) - 2);
  V end = function_->getArg(static_cast<unsigned>(types.size()) - 1);
  // Tasks count from 0, the variable from the loop's begin.
  V offset = b_.getInt64(static_cast<std::uint64_t>(grid.begin));
  if (grid.end - grid.begin > 0) {
    ranges_[static_cast<std::size_t>(grid.var.index)] = ir::Interval{grid.begin, grid.end - 1};
    branch(b_.CreateICmpSLT(begin, end), [&] {
      counted(grid.var, b_.CreateAdd(begin, offset), b_.CreateAdd(end, offset), *grid.body);
    });
  }
  if (tiles_configured_) release_tiles();
  b_.CreateRetVoid();
  return function_;
}

/// Arguments do not alias one another: the memory planner gives each its own bytes, which may lie
/// between another one's (parts of a concatenation).
void Emitter::bind_parameters(llvm::Function* f, const std::vector<std::int32_t>& buffers) {
  unsigned next = 0;
  for (const std::int32_t id : buffers) {
    const Buffer& buf = buffer(id);
    auto& base = bases_[static_cast<std::size_t>(id)];
    if (in_registers(id)) {
      // Room behind the end lets a full vector be read where only some lanes are in use.
      const auto count = static_cast<std::uint64_t>(buf.size + (buf.lanes > 1 ? 64 : 0));
      auto* slot = b_.CreateAlloca(llvm::ArrayType::get(ops_.storage(buf.dtype), count));
      slot->setAlignment(llvm::Align(64));
      base = slot;
      continue;
    }
    f->addParamAttr(next, llvm::Attribute::NoAlias);
    f->addParamAttr(next, llvm::Attribute::NonNull);
    f->addParamAttr(next, llvm::Attribute::NoUndef);
    base = f->getArg(next++);
    base->setName(buf.name);
  }
}

void Emitter::body(const Body& statements) {
  for (const Stmt& s : statements) statement(s);
}

void Emitter::statement(const Stmt& s) {
  match(
      s.op, [&](const For& x) { loop(x); }, [&](const Store& x) { store(x); },
      [&](const If& x) { when(x); }, [&](const Let& x) { let(x); },
      [&](const Barrier&) { HEDDLE_CHECK(false, "'{}': barrier inside a phase", k_.name); },
      [&](const Routine& x) { routine(x); },
      [&](const Prefetch& x) {
        V line = address(x.buffer.value, bound(x.offset));
        prefetch(line, x.far ? 2 : 3);
        if (x.page) prefetch(page_behind(line), 2);
      },
      [&](const TileProduct& x) { tiles(x); },
      [&](const auto&) { HEDDLE_CHECK(false, "'{}': a GPU's statement on a CPU", k_.name); });
}

/// A line that will be read, into the cache of this level from the cores (3: the nearest).
void Emitter::prefetch(V line, std::uint32_t near) {
  b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {b_.getPtrTy()},
                     {line, b_.getInt32(0), b_.getInt32(near), b_.getInt32(1)});
}

void Emitter::touch(const std::vector<std::int32_t>& buffers) {
  ++time_;
  for (const std::int32_t id : buffers) stored_[static_cast<std::size_t>(id)] = time_;
}

void Emitter::loop(const For& x) {
  const std::int64_t extent = x.end - x.begin;
  if (extent <= 0) return;
  if (x.binding == Binding::vector) return vector_loop(x);
  if (x.binding == Binding::unroll || extent == 1) return repeat(x);
  const TileProduct* product =
      x.body->empty() ? nullptr : std::get_if<TileProduct>(&x.body->front().op);
  if (product && product->along != x.var) product = nullptr;  // it has loops of its own
  if (product) begin_tiles(*product);
  ranges_[static_cast<std::size_t>(x.var.index)] = ir::Interval{x.begin, x.end - 1};
  counted(x.var, b_.getInt64(static_cast<std::uint64_t>(x.begin)),
          b_.getInt64(static_cast<std::uint64_t>(x.end)), *x.body);
  ranges_[static_cast<std::size_t>(x.var.index)].reset();
  if (product) end_tiles(*product);
}

/// One copy of the body for each value of the variable.
void Emitter::repeat(const For& x) {
  const auto at = static_cast<std::size_t>(x.var.index);
  for (std::int64_t i = x.begin; i < x.end; ++i) {
    bound_[at] = i;
    ranges_[at] = ir::Interval{i, i};
    unrolled_[at] = x.begin == 0 ? x.end : 0;
    levels_[at] = depth();
    body(*x.body);
  }
  unrolled_[at] = 0;
  bound_[at].reset();
  ranges_[at].reset();
}

/// A loop that runs at least once: preheader, body, and a test at the end.
void Emitter::counted(Var var, V begin, V end, const Body& statements) {
  const auto& writes = analysis_.writes(statements);
  touch(writes);
  auto& context = module_.getContext();
  llvm::BasicBlock* from = b_.GetInsertBlock();
  auto* block = llvm::BasicBlock::Create(context, block_name("loop"), function_);
  auto inner = std::make_shared<Scope>();
  inner->before = b_.CreateBr(block);
  inner->writes = &writes;
  inner->mask = scope().mask;
  b_.SetInsertPoint(block);
  llvm::PHINode* phi = b_.CreatePHI(b_.getInt64Ty(), 2, "i");
  const auto at = static_cast<std::size_t>(var.index);
  scopes_.push_back(inner);
  phis_[at] = phi;
  levels_[at] = depth();
  body(statements);
  scopes_.pop_back();
  V next = b_.CreateAdd(phi, b_.getInt64(1), "", true, true);
  auto* exit = llvm::BasicBlock::Create(context, crowded_ ? kApart : "end", function_);
  from = inner->before->getParent();  // the preheader may have been split
  phi->addIncoming(begin, from);
  phi->addIncoming(next, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(next, end), block, exit);
  b_.SetInsertPoint(exit);
}

/// Lanes side by side. Width: a power of two that covers the extent and the registers it uses.
void Emitter::vector_loop(const For& x) {
  HEDDLE_CHECK(!vector_, "'{}': vector loops are nested", k_.name);
  const std::int64_t extent = x.end - x.begin;
  unsigned width = 1;
  while (width < extent) width *= 2;
  for (const std::int32_t id : Analysis::touched(*x.body)) {
    width = std::max(width, static_cast<unsigned>(buffer(id).lanes));
  }
  if (width == 1) return repeat(x);
  vector_ = Vector{x.var, x.begin, static_cast<unsigned>(extent), width};
  const auto at = static_cast<std::size_t>(x.var.index);
  ranges_[at] = ir::Interval{x.begin, x.end - 1};
  // Vectors that are the same each time round the loop are made before it, but not before others
  // around it, which may be a main loop's.
  const bool in_loop = scope().before && scope().writes && !scope().conditional && !scope().mask;
  levels_[at] = in_loop ? depth() - 1 : depth();
  body(*x.body);
  ranges_[at].reset();
  vector_.reset();
}

void Emitter::test(const std::vector<ir::Condition>& conditions, int more) {
  std::vector<Var> used;
  for (const ir::Condition& c : conditions) ir::collect_variables(c.expr, used);
  for (const Var v : used) tested_[static_cast<std::size_t>(v.index)] += more;
}

void Emitter::when(const If& x) {
  test(x.conditions, 1);
  when_tested(x);
  test(x.conditions, -1);
}

void Emitter::when_tested(const If& x) {
  std::vector<ir::Condition> conditions = x.conditions;
  for (ir::Condition& c : conditions) c.expr = bound(c.expr);
  const auto left = ir::simplify(conditions, ranges_);
  if (!left) return;
  if (left->empty()) return body(*x.body);
  V uniform = nullptr, varying = nullptr;
  for (const ir::Condition& c : *left) {
    V& all = varies(c.expr) ? varying : uniform;
    V one = condition(c);
    all = all ? b_.CreateAnd(all, one) : one;
  }
  const auto inside = [&] {
    if (!varying) return body(*x.body);
    auto masked = std::make_shared<Scope>();
    masked->conditional = true;
    masked->mask = scope().mask ? b_.CreateAnd(scope().mask, varying) : varying;
    scopes_.push_back(masked);
    body(*x.body);
    scopes_.pop_back();
  };
  if (!uniform) return inside();
  const std::size_t outside = given_.size();
  for (const ir::Condition& c : *left)
    if (!varies(c.expr)) given_.push_back(c);
  branch(uniform, inside);
  given_.resize(outside);
}

/// A loop of one iteration, or none.
void Emitter::let(const Let& x) {
  HEDDLE_CHECK(!vector_, "'{}': a variable bound in a vector loop", k_.name);
  const auto at = static_cast<std::size_t>(x.var.index);
  V value = index(bound(x.value));
  branch(condition({bound(x.value), x.begin, x.end}), [&] {
    phis_[at] = value;
    levels_[at] = depth();
    ranges_[at] = ir::Interval{x.begin, x.end - 1};
    body(*x.body);
    ranges_[at].reset();
  });
}

void Emitter::routine(const Routine& x) {
  HEDDLE_CHECK(!vector_, "'{}': routine '{}' in a vector loop", k_.name, x.name);
  llvm::SmallVector<V> args;
  llvm::SmallVector<llvm::Type*> types;
  std::vector<std::int32_t> ids;
  for (const BufferId id : x.buffers) {
    args.push_back(bases_[static_cast<std::size_t>(id.value)]);
    types.push_back(b_.getPtrTy());
    ids.push_back(id.value);
  }
  for (const Expr& e : x.integers) {
    args.push_back(index(bound(e)));
    types.push_back(b_.getInt64Ty());
  }
  b_.CreateCall(
      module_.getOrInsertFunction(x.name, llvm::FunctionType::get(b_.getVoidTy(), types, false)),
      args);
  touch(ids);
}

Emitter::Position Emitter::position() const {
  const bool at_end = b_.GetInsertPoint() == b_.GetInsertBlock()->end();
  return {b_.GetInsertBlock(), at_end ? nullptr : &*b_.GetInsertPoint()};
}

void Emitter::restore(Position p) {
  if (p.before) {
    b_.SetInsertPoint(p.before);
  } else {
    b_.SetInsertPoint(p.block);
  }
}

/// Emits at the end of an outer level: before the jump into the first loop or branch inside it.
Emitter::V Emitter::at_level(int level, const std::function<V()>& make) {
  if (level == depth()) return make();
  const Position here = position();
  const Scopes all = scopes_;
  bool moved = false;
  for (std::size_t i = static_cast<std::size_t>(level) + 1; i < all.size(); ++i) {
    if (!all[i]->before) continue;
    b_.SetInsertPoint(all[i]->before);
    moved = true;
    break;
  }
  scopes_.resize(static_cast<std::size_t>(level) + 1);
  V out = make();
  scopes_ = all;
  if (moved) restore(here);  // else `make` may have branched, and the builder is where it ended
  return out;
}

void Emitter::branch(V condition, const std::function<void()>& then) {
  branch_value(
      condition,
      [&]() -> V {
        then();
        return nullptr;
      },
      nullptr);
}

/// What follows a main loop is told by its name, with all that is inside it.
const char* Emitter::block_name(const char* name) const {
  return b_.GetInsertBlock()->getName().starts_with(kApart) ? kApart : name;
}

/// Two-way branch at the builder's position, which may be in the middle of a block.
Emitter::V Emitter::branch_value(V condition, const std::function<V()>& then,
                                 const std::function<V()>& otherwise) {
  auto& context = module_.getContext();
  const Position here = position();
  llvm::BasicBlock* head = here.block;
  llvm::BasicBlock* tail;
  if (here.before) {
    tail = head->splitBasicBlock(here.before, block_name("tail"));
    head->getTerminator()->eraseFromParent();
  } else {
    tail = llvm::BasicBlock::Create(context, block_name("tail"), function_);
  }
  auto* yes = llvm::BasicBlock::Create(context, block_name("then"), function_, tail);
  llvm::BasicBlock* no =
      otherwise ? llvm::BasicBlock::Create(context, block_name("else"), function_, tail) : tail;
  b_.SetInsertPoint(head);
  llvm::Instruction* jump = b_.CreateCondBr(condition, yes, no);
  const auto side = [&](llvm::BasicBlock* block, const std::function<V()>& make) {
    auto inner = std::make_shared<Scope>();
    inner->before = jump;
    inner->conditional = true;
    inner->mask = scope().mask;
    scopes_.push_back(inner);
    b_.SetInsertPoint(block);
    V out = make();
    scopes_.pop_back();
    llvm::BasicBlock* last = b_.GetInsertBlock();
    b_.CreateBr(tail);
    return std::pair{out, last};
  };
  const auto [a, from_a] = side(yes, then);
  V out = a;
  if (otherwise) {
    const auto [c, from_c] = side(no, otherwise);
    b_.SetInsertPoint(tail, tail->begin());
    llvm::PHINode* phi = b_.CreatePHI(a->getType(), 2);
    phi->addIncoming(a, from_a);
    phi->addIncoming(c, from_c);
    out = phi;
  }
  if (here.before) {
    b_.SetInsertPoint(here.before);
  } else {
    b_.SetInsertPoint(tail);
  }
  return out;
}

llvm::Align Emitter::align_of(std::int32_t id) const {
  return llvm::Align(static_cast<std::uint64_t>(size_of(buffer(id).dtype)));
}

}  // namespace heddle::codegen::cpu
