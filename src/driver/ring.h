#pragma once
#include "driver/platform.h"

namespace heddle::driver {

/// What of a kernel's constants may come through a persistent kernel's ring, by phase, and a line
/// for each large one that says how it is read and why.
struct Paging {
  std::vector<std::vector<runtime::Paged>> phases;
  std::vector<std::string> notes;
  std::int64_t ring_bytes = 0, large_bytes = 0;  ///< of constants that may, and of all in the notes
};
Paging paging_of(const lower::Lowered& lowered, const prim::Graph& graph, const Platform& platform);
/// The same of a kernel that has code.
Paging paging_of(const KernelCode& code);

/// As many pages as there is room for behind `shared_bytes` of the stages, if much of the kernels'
/// large constants would come through them: all stages pay for the room and the registers. Errors,
/// with the reason why there is no ring: unsupported.
Result<runtime::Ring> ring_for(const std::vector<KernelCode*>& kernels, const Platform& platform,
                               std::int64_t shared_bytes);
/// Constants of which a single task has no room in the ring are read where they are.
void drop_what_does_not_fit(KernelCode& code, const runtime::Ring& ring);

/// What the kernels' notes say where there is no ring.
void note_no_ring(std::vector<KernelCode*>& kernels, const std::string& why);

/// "14 pages of 16384 bytes; …" or why there is none; empty: not asked for.
std::string ring_summary(const Compiled& compiled);

}  // namespace heddle::driver
