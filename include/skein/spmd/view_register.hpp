// SPDX-License-Identifier: Apache-2.0
#pragma once
// The truth about an elastic job's views: one place that all of its supervisors can reach, in which
// views follow each other one by one. In the memory of the supervisor at the job's endpoint, in
// etcd (spmd/etcd_register.hpp), or simulated.

#include <skein/core/task.hpp>
#include <skein/spmd/view.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace skein::spmd {

/// The supervisor that proposes views.
struct coordinator_place {
    std::uint64_t id = 0; ///< of the supervisor; 0: there is none
    std::string address;  ///< where the other supervisors reach it
    friend bool operator==(const coordinator_place&, const coordinator_place&) = default;
};

/// What a swap came to: it was made exactly when `now` is the view that was offered.
struct swap_result {
    bool swapped = false;
    view now; ///< what the register holds after it
};

/// Lives on one loop. Calls that cannot reach the register wait and try again until they are
/// cancelled: an absent register holds up changes, never a training.
///   errors  of all calls: permission_denied, not_supported and mismatch (another kind of register,
///           a wrong key or certificate): trying again would come to the same
class view_register {
public:
    view_register() = default;
    view_register(const view_register&) = delete;
    view_register& operator=(const view_register&) = delete;
    virtual ~view_register() = default;

    /// The newest view; generation 0 before the first.
    [[nodiscard]] virtual task<view> read() = 0;
    /// Puts `next` in the place of the view with this generation; next.generation is one more. A
    /// swap whose answer was lost is read back, and counts once. A register that holds an older
    /// view has lost newer ones (its disk, its keys): who knows them puts `next` there, too.
    [[nodiscard]] virtual task<swap_result> compare_and_swap(std::uint64_t generation,
                                                             view next) = 0;
    /// The newest view, as soon as its generation is larger than `after`.
    [[nodiscard]] virtual task<view> watch(std::uint64_t after) = 0;

    /// Makes this supervisor the coordinator if there is none; gives who is the coordinator now. One
    /// that is it already may have another address by now. The
    /// place is held, by a lease where the register is elsewhere, until resign() or the end of this
    /// object.
    [[nodiscard]] virtual task<coordinator_place> claim(coordinator_place me) = 0;
    /// Until the coordinator is another one than `known`, or none; gives who it is then.
    [[nodiscard]] virtual task<coordinator_place> watch_coordinator(coordinator_place known) = 0;
    [[nodiscard]] virtual task<void> resign() = 0;
};

} // namespace skein::spmd
