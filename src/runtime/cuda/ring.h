#pragma once
#include <vector>

#include "runtime/cuda/monolith_tables.h"

namespace heddle::runtime::cuda {

/// Constants come to a block's items through a ring of pages in its shared memory: a warp of its
/// own fills positions 0, 1, 2, … (page: position modulo pages) in the order in which items want
/// them, however long these wait for other blocks, and waits itself only until a page is free.
/// Items take their tasks in steps of whole tasks: before a step its pages are waited for, after it
/// they are free. In a step, byte x of an argument lies at the step's first page + bias + x.
constexpr std::int64_t kNoPages = INT64_MIN;  ///< bias of an argument that is read where it is
constexpr std::int64_t kPageUnit = 16;        ///< bytes: copies begin and end at multiples

/// The bytes that tasks [first, last) read of an argument of so many bytes, in whole units; none:
/// begin == end. What is behind the last byte of a constant may be read up to a whole unit.
Span paged_bytes(const Paged& paged, std::int64_t first, std::int64_t last, std::int64_t size);

/// What of a stage comes through the program's ring: constants, if a task of all of them fits.
std::vector<Paged> paged_of(const Program& program, const Stage& stage);
/// Pages that the ring must have for one task.
std::int64_t pages_of_task(const std::vector<Paged>& paged, int page_bytes);

/// Steps of the items, and what is loaded for them.
void add_pages(const Program& program, const std::vector<Stage>& stages, MonolithTables& tables);

/// What a block does with a page. The kernel's two sides do these in the order of the tables.
struct RingEvent {
  enum class Kind : std::uint8_t {
    wait_empty,  ///< until the barrier `empty` of the page has passed the phase of this parity
    fill,        ///< announced and started; `full` passes a phase when the bytes are there
    wait_full,   ///< until the barrier `full` has passed the phase of this parity
    read,        ///< of the filling with number `position`
    release,     ///< arrival at `empty`, which passes a phase
  } kind;
  int page = 0, parity = 0, position = 0;
};
struct RingEvents {
  std::vector<RingEvent> producer, consumer;
};
/// What the kernel's walk does for the tables of a block.
RingEvents ring_events(const MonolithTables& tables, int block, int pages);

/// Proof that no wait is in vain or passes too early, and that no page is filled while it is read
/// or before it was. Knows nothing of how pages were planned.
Status validate(const RingEvents& events, int pages);
/// The same for all blocks, and that every step finds the bytes of its tasks in the pages that it
/// waits for, and that the steps of an item are its tasks.
Status validate_ring(const Program& program, const std::vector<Stage>& stages,
                     const MonolithTables& tables);

}  // namespace heddle::runtime::cuda
