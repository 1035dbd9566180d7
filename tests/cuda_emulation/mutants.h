#pragma once
// Texts without one of their synchronisations.
#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "emulation/emulation.h"

namespace heddle {

constexpr const char* kSynchronisations =
    R"((hd::)?(block_sync|warp_sync|named_sync|named_arrive|copy_commit|copy_wait<[^>]*>)"
    R"(|grid_barrier|cluster_sync|mbarrier_fence|mbarrier_arrive|mbarrier_arrive_expect)"
    R"(|mbarrier_wait|fence_async|wgmma_fence|wgmma_commit|wgmma_wait<[^>]*>)\([^;]*\);)";

struct Mutant {
  std::string text;
  std::string what;  ///< "line 12: hd::block_sync();"
};

/// The text without one of what the pattern finds in [from, to), each in turn.
inline std::vector<Mutant> mutants_of(const std::string& text, const std::string& pattern,
                                      std::size_t from = 0, std::size_t to = std::string::npos) {
  const std::regex expression(pattern);
  std::vector<Mutant> out;
  to = std::min(to, text.size());
  const auto begin = text.begin() + static_cast<long>(from),
             end = text.begin() + static_cast<long>(to);
  for (std::sregex_iterator at(begin, end, expression), last; at != last; ++at) {
    const std::size_t place = from + static_cast<std::size_t>(at->position());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(place), '\n');
    out.push_back(
        {text.substr(0, place) + ";" + text.substr(place + static_cast<std::size_t>(at->length())),
         fmt::format("line {}: {}", line, at->str())});
  }
  return out;
}

/// What the first order that notices says; "" if none does.
template <class Run>
std::string first_notice(Run&& run) {
  using emulation::Order;
  for (Order order : {Order::forward, Order::reverse, Order::random})
    if (std::string said = run(order); !said.empty()) return said;
  return "";
}

inline std::string renamed(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace heddle
