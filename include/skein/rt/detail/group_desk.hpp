// SPDX-License-Identifier: Apache-2.0
#pragma once
// What runtimes do about placement groups: bodies in runtime_groups.ipp, of names and of workers in
// runtime_group_desk.ipp, of handles in calls in runtime_group_handles.ipp.

#include <skein/core/counted_ptr.hpp>
#include <skein/core/task.hpp>
#include <skein/rt/detail/groups_state.hpp>
#include <skein/rt/options.hpp>
#include <skein/rt/runtime.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::rt {

namespace detail {
struct group_question;
struct group_answer;
enum class group_matter : std::uint8_t;
/// What a worker is told of a group, under the driver's number.
[[nodiscard]] group_answer told_of(const group_state& group, std::uint64_t number);

/// A group by its name as a label in the call of a worker.
[[nodiscard]] std::string named_group_label(const location& on);
} // namespace detail

/// Its functions are part of runtime.
struct runtime::group_desk {
    using state_ptr = counted_ptr<detail::group_state>;

    // For placement_group.
    [[nodiscard]] static state_ptr make(runtime& self, const std::vector<std::string>& bundles,
                                        sched::group_strategy how, std::string_view name,
                                        bool get_if_exists);
    [[nodiscard]] static task<state_ptr> look_up(runtime* self, std::string name);
    [[nodiscard]] static task<void> ask_and_wait(state_ptr group, bool for_end);
    [[nodiscard]] static bool is_elsewhere(const detail::group_state& group) noexcept;
    [[nodiscard]] static bool is_worker(const runtime& self) noexcept;
    [[nodiscard]] static result<void> take_handle(runtime& self, const detail::group_answer& told,
                                                  state_ptr& into);
    static void drop(runtime& self, detail::group_state& state) noexcept;
    static void end(runtime& self, detail::group_state& group, const error& why);

    // For calls.
    static void join(runtime& self, detail::call_base& call);
    [[nodiscard]] static state_ptr of(const runtime& self, sched::demand_id demand);
    static void keep(runtime& self, detail::call_base& call, std::uint64_t number);

    static void changed(runtime& self, detail::group_state& state);
    static void fail_all(runtime& self, const error& why);
    static void on_question(runtime& self, peer& from, const net::frame_view& f);
    static void take_back(runtime& self, peer& from, slot_id slot);
    [[nodiscard]] static state_ptr take_answer(runtime& self, byte_span answer);

private:
    static void tell_drop(runtime& self, std::uint64_t number);
    static void tell(runtime& self, detail::group_matter matter, detail::group_question what);
    static void find_for(runtime& self, peer& from, slot_id slot, const std::string& name);
    static void make_for(runtime& self, peer& from, const detail::group_question& what);
    static void hold_for(runtime& self, peer& from, std::uint64_t number);
    [[nodiscard]] static state_ptr enter_told(runtime& self, const detail::group_answer& told);
    static void refuse(runtime& self, std::uint64_t number, const error& why);
    static void forget(runtime& self, std::uint64_t number);
    static void ask(runtime& self, const counted_ptr<detail::call_base>& call,
                    const detail::group_question& what, std::string name);
    static void end_waits(runtime& self, peer& from, detail::group_state& state,
                          std::optional<slot_id> slot, const error& why);
    friend class runtime;
};

} // namespace skein::rt
