#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/artefact.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "support/dimensions.h"

namespace heddle::runtime {

/// A row of the dispatch table: at these sizes of the model's symbolic dimensions this program
/// runs.
struct SizeCase {
  std::map<std::string, std::int64_t> sizes;
  std::size_t program = 0;
  std::vector<Shape> inputs, outputs;  ///< of the model's ports; the program's may be larger
  /// Values for the program's inputs behind the model's: extents, and constants of this size.
  std::vector<std::size_t> given;
};

/// A model for several sizes of its inputs: a few programs, whose inputs are padded and whose
/// outputs are cropped, and a table that says which one runs.
struct SizedProgram {
  std::vector<std::shared_ptr<const Program>> programs;
  std::vector<Tensor> values;  ///< that SizeCase::given counts
  std::vector<SizeCase> cases;
  /// What the model's dimensions are called, by input and axis ("": the extent is fixed), and those
  /// that follow from others.
  std::vector<std::vector<std::string>> dimensions;
  DimensionFacts facts;

  /// The last case for inputs of these shapes, by name, and these sizes of dimensions; what is not
  /// there fits all. The error names the dimension that disagrees with another input or with a
  /// fact, else says what there is.
  Result<std::size_t> find(const std::map<std::string, Shape>& inputs,
                           const std::map<std::string, std::int64_t>& sizes = {}) const;
  /// The model at the sizes of a case: the program with the ports of that size.
  Program at(std::size_t number) const;
  /// What there are programs for, in a line: "H=1..8, S=16..512:16".
  std::string ranges() const;
  /// The dispatch table: the facts, and a line for each program and its sizes.
  std::string table() const;

 private:
  Status agree(const std::map<std::string, Shape>& inputs,
               std::map<std::string, std::int64_t> sizes) const;
  /// Where each dimension is met first.
  std::map<std::string, std::string> described() const;
};

/// Runs case `number` through a session of its program. Inputs of a smaller size are copied into
/// larger ones; where sizes are the program's own nothing is copied.
std::shared_ptr<Session> size_session(std::shared_ptr<const SizedProgram> sized, std::size_t number,
                                      std::shared_ptr<Session> program);

/// Writes all programs into one file; what several of them hold (weights) is there once. See
/// artefact.h for the format.
Status write_sized_artefact(const SizedProgram& program, const std::string& path);
/// Reads the file, as read_artefact does.
Result<SizedProgram> read_sized_artefact(const std::string& path);
Result<SizedProgram> parse_sized_artefact(const std::byte* data, std::size_t size,
                                          std::shared_ptr<const void> owner,
                                          Checksums checksums = Checksums::compared);
/// True if the file is an artefact of several programs.
bool is_sized_artefact(const std::string& path);

}  // namespace heddle::runtime
