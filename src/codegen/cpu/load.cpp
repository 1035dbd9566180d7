// Objects linked into this process with JITLink, under a plain execution session: no platform, no
// lazy compilation, symbols from one explicit table.
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/Core.h>
#include <llvm/ExecutionEngine/Orc/ExecutorProcessControl.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/Object/ObjectFile.h>

#include <unordered_map>

#include "codegen/cpu/target.h"

namespace heddle::codegen::cpu {
namespace {

namespace orc = llvm::orc;

Error convert(llvm::Error error) {
  return fail("loading generated code: {}", llvm::toString(std::move(error)));
}

class LinkedModule : public Module {
 public:
  explicit LinkedModule(std::unique_ptr<orc::ExecutionSession> session)
      : session_(std::move(session)), linker_(*session_) {}
  ~LinkedModule() override {
    if (llvm::Error error = session_->endSession()) llvm::consumeError(std::move(error));
  }

  Status link(std::span<const std::string> objects) {
    orc::JITDylib& library = session_->createBareJITDylib("kernels");
    orc::SymbolMap outside;
    for (const Symbol& s : runtime_symbols()) {
      outside[session_->intern(s.name)] = {orc::ExecutorAddr::fromPtr(s.address),
                                           llvm::JITSymbolFlags::Exported};
    }
    if (llvm::Error error = library.define(orc::absoluteSymbols(std::move(outside)))) {
      return convert(std::move(error));
    }
    orc::SymbolLookupSet wanted;
    for (const std::string& bytes : objects) {
      HEDDLE_TRY(collect(bytes, wanted));
      auto copy = llvm::MemoryBuffer::getMemBufferCopy(bytes, "kernels");
      if (llvm::Error error = linker_.add(library, std::move(copy))) {
        return convert(std::move(error));
      }
    }
    auto found = session_->lookup(orc::makeJITDylibSearchOrder(&library), std::move(wanted));
    if (!found) return convert(found.takeError());
    for (const auto& [name, symbol] : *found) {
      functions_.emplace((*name).str(), symbol.getAddress().toPtr<TaskFn>());
    }
    return Ok{};
  }

  TaskFn find(const std::string& symbol) const override {
    const auto found = functions_.find(symbol);
    return found == functions_.end() ? nullptr : found->second;
  }

 private:
  /// Adds the functions that an object exports.
  Status collect(const std::string& bytes, orc::SymbolLookupSet& wanted) {
    auto object = llvm::object::ObjectFile::createObjectFile(
        llvm::MemoryBufferRef(llvm::StringRef(bytes), "kernels"));
    if (!object) return convert(object.takeError());
    for (const llvm::object::SymbolRef& s : (*object)->symbols()) {
      auto flags = s.getFlags();
      if (!flags) return convert(flags.takeError());
      using F = llvm::object::BasicSymbolRef;
      auto name = s.getName();
      if (!name) return convert(name.takeError());
      if ((*flags & F::SF_Undefined) && *name == kPermitTiles && !tiles_permitted())
        return fail(ErrorCode::missing,
                    "the code multiplies in tile registers (AMX), which this processor lacks or "
                    "its system does not permit");
      if (!(*flags & F::SF_Global) || (*flags & F::SF_Undefined)) continue;
      wanted.add(session_->intern(*name));
    }
    return Ok{};
  }

  std::unique_ptr<orc::ExecutionSession> session_;
  orc::ObjectLinkingLayer linker_;
  std::unordered_map<std::string, TaskFn> functions_;
};

}  // namespace

Result<std::shared_ptr<Module>> load(std::span<const std::string> objects) {
  auto control = orc::SelfExecutorProcessControl::Create();
  if (!control) return convert(control.takeError());
  auto module =
      std::make_shared<LinkedModule>(std::make_unique<orc::ExecutionSession>(std::move(*control)));
  HEDDLE_TRY(module->link(objects));
  return std::shared_ptr<Module>(std::move(module));
}

}  // namespace heddle::codegen::cpu
