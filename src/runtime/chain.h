#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/sized.h"

namespace heddle::runtime {

/// Programs that run one after another, where values decide shapes: an extent (or a number) that
/// one of them computes is a size of the next ones, each of which is compiled for all that there
/// can be. Nothing is compiled while running, and no buffer is larger than the largest size's.
struct Chain {
  /// A size that is known when an earlier link has run.
  struct Count {
    std::string name;   ///< in the dispatch table
    std::string value;  ///< what tells it
    int axis = 0;       ///< its extent along this axis; -1: it is its only number
  };
  /// A value that a link makes: a port of its programs, cut to the extents that others tell.
  struct Made {
    std::string name;
    std::size_t port = 0;
    std::vector<std::pair<int, std::size_t>> extents;  ///< axis, port
  };
  struct Link {
    SizedProgram programs;  ///< SizeCase::sizes: by the names of `counts`
    std::vector<Count> counts;
    std::vector<Made> made;
  };
  /// An output of the model: a value of a link, or an input.
  struct Output {
    std::string value;
    std::size_t port = 0;
    std::vector<std::pair<int, std::size_t>> extents;  ///< axis, port that tells it
  };
  std::vector<Link> links;
  /// The model's ports; an output whose extents values decide has room for the most there can be,
  /// and other outputs (scalars, i64) tell them.
  std::vector<Port> inputs, outputs;
  std::vector<Output> results;

  /// The ports, and what the links take together.
  Program as_program() const;
  /// The links with their dispatch tables.
  std::string table() const;
};

/// Gives the session of a case of a link.
using CaseSession =
    std::function<Result<std::shared_ptr<Session>>(std::size_t link, std::size_t number)>;
std::shared_ptr<Session> chain_session(std::shared_ptr<const Chain> chain, CaseSession sessions);

Status write_chain_artefact(const Chain& chain, const std::string& path);
Result<Chain> read_chain_artefact(const std::string& path);
Result<Chain> parse_chain_artefact(const std::byte* data, std::size_t size,
                                   std::shared_ptr<const void> owner,
                                   Checksums checksums = Checksums::compared);
/// True if the file is an artefact of such programs.
bool is_chain_artefact(const std::string& path);

}  // namespace heddle::runtime
