// Constants of epilogues, kept out of main loops.
#include <llvm/ADT/bit.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <vector>

#include "codegen/cpu/target.h"

namespace heddle::codegen::cpu {
namespace {

/// The number in all lanes of a vector of f32; null for zero, which needs no memory.
const llvm::ConstantFP* number_in(const llvm::Value* v) {
  const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  if (!type || !type->getElementType()->isFloatTy()) return nullptr;
  const auto* c = llvm::dyn_cast<llvm::Constant>(v);
  const auto* one = c ? llvm::dyn_cast_or_null<llvm::ConstantFP>(c->getSplatValue()) : nullptr;
  return one && !one->isZero() ? one : nullptr;
}

/// A variable that holds so many of the number: the compiler may not assume that it still does.
llvm::GlobalVariable* variable_of(llvm::Module& module, const llvm::ConstantFP* number,
                                  unsigned count) {
  const auto bits = number->getValueAPF().bitcastToAPInt().getZExtValue();
  const std::string name = "number." + std::to_string(bits) + "x" + std::to_string(count);
  if (auto* known = module.getNamedGlobal(name)) return known;
  auto* one = const_cast<llvm::ConstantFP*>(number);
  llvm::Constant* value = one;
  if (count > 1) value = llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(count), one);
  auto* variable = new llvm::GlobalVariable(module, value->getType(), false,
                                            llvm::GlobalValue::PrivateLinkage, value, name);
  variable->setAlignment(llvm::Align(4 * llvm::bit_floor(count)));
  return variable;
}

void keep_apart(llvm::Module& module, llvm::Instruction& instruction, bool broadcasts) {
  if (!llvm::isa<llvm::BinaryOperator, llvm::CmpInst, llvm::SelectInst>(instruction)) return;
  llvm::IRBuilder<> b(&instruction);
  for (llvm::Use& operand : instruction.operands()) {
    const llvm::ConstantFP* number = number_in(operand.get());
    if (!number) continue;
    auto* type = llvm::cast<llvm::FixedVectorType>(operand->getType());
    const unsigned lanes = type->getNumElements();
    if (!broadcasts) {
      llvm::GlobalVariable* all = variable_of(module, number, lanes);
      operand.set(b.CreateAlignedLoad(type, all, all->getAlign()));
      continue;
    }
    llvm::Value* one = b.CreateLoad(number->getType(), variable_of(module, number, 1));
    operand.set(b.CreateVectorSplat(lanes, one));
  }
}

}  // namespace

void keep_constants_apart(llvm::Module& module, bool broadcasts) {
  std::vector<llvm::Instruction*> found;
  for (llvm::Function& f : module)
    for (llvm::BasicBlock& block : f)
      if (block.getName().starts_with(kApart))
        for (llvm::Instruction& i : block) found.push_back(&i);
  for (llvm::Instruction* i : found) keep_apart(module, *i, broadcasts);
}

}  // namespace heddle::codegen::cpu
