#pragma once
#include <map>
#include <optional>
#include <set>

#include "plan/select.h"

namespace heddle::plan {

/// The candidates of a region as a covering problem over classes of values.
struct CoverProblem {
  CoverProblem(const Facts& facts, const Region& region, const std::vector<Candidate>& candidates);

  const Facts& f;
  const std::vector<Candidate>& all;
  std::set<NodeId> inside;                    ///< classes made by the region
  std::vector<NodeId> goals;                  ///< classes that must be in memory
  std::map<NodeId, std::vector<int>> makers;  ///< by class
  std::vector<std::vector<NodeId>> needs_of;  ///< classes of the region, by candidate
  /// The same and the classes made, as positions in `inside`: what is asked most often.
  std::vector<std::vector<int>> need_positions, made_positions;
  std::vector<NodeId> classes;      ///< `inside` by position
  std::vector<int> goal_positions;  ///< of `goals`

  /// Class → cost of making it and the candidate that does.
  using Flows = std::map<NodeId, std::pair<double, int>>;
  /// `given`: a candidate that is there in any case; -1: none.
  Flows flows(const std::map<NodeId, double>& readers, int given = -1) const;
  /// Adds what is missing by the cheapest makers, drops what is superfluous.
  std::optional<std::vector<int>> complete(std::vector<int> chosen, const Flows& best) const;
  /// The choice with `candidate` in it, repaired.
  std::optional<std::vector<int>> with(const std::vector<int>& chosen, int candidate,
                                       const Flows& best) const;
  /// A choice completed and improved; nullopt if its kernels wait for each other.
  std::optional<std::vector<int>> improved_from(const Region& region,
                                                std::vector<int> chosen) const;
  /// Readers of each class in the graph.
  std::map<NodeId, double> readers_of(const Region& region) const;
  /// The choice with `candidate` in it, and everything that reads or repeats what that makes chosen
  /// again, as it is there.
  std::optional<std::vector<int>> around(const std::vector<int>& chosen, int candidate,
                                         const std::map<NodeId, double>& readers) const;
  std::vector<int> drop_unneeded(std::vector<int> chosen) const;
  double cost(const std::vector<int>& chosen) const;
  /// Sets of nodes (mostly of one) of which every plan computes at least one: what alternatives
  /// cannot avoid, and either way where they differ.
  std::vector<std::vector<NodeId>> necessary(const Region& region) const;
  /// True if no plan makes the goals without computing one of `nodes`.
  bool unavoidable(const std::vector<NodeId>& nodes) const;
  /// Chosen kernels that can never start, each with a value it waits for.
  std::map<int, NodeId> stuck(const std::vector<int>& chosen) const;
  /// Everything needed is made, in some order.
  bool acyclic(const std::vector<int>& chosen) const;

  /// Of the chosen kernels those that can never start, and which classes the others make.
  struct Waiting {
    std::vector<int> open;
    std::vector<char> made;  ///< by position
  };
  Waiting waiting_of(const std::vector<int>& chosen) const;
  /// The first of the kernel's needs that is not made, by position among them; -1 if all are.
  int missing(int k, const std::vector<char>& made) const;
  bool makes_goals(const std::vector<char>& made) const;
};

}  // namespace heddle::plan
