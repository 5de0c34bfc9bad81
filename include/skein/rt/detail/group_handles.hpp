// SPDX-License-Identifier: Apache-2.0
#pragma once
// group_handles: what handles to placement groups ask of their process: a driver's group_desk, or,
// at a worker, the driver. A worker gives a group that it makes a number of its own, and counts
// with its driver which groups have handles here (borrows, of detail/holds.hpp).
//
//     group_handles handles(desk, replies, above);
//     handles.follow(&driver);                        // a worker has met its driver
//     auto group = handles.make({"cpu=1"}, sched::group_strategy::pack, "web", false);
//     co_await handles.ask(group, false);             // until it is placed

#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>
#include <skein/core/task.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/group_message.hpp>
#include <skein/rt/detail/groups_state.hpp>
#include <skein/rt/detail/holds.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::sched {
enum class group_strategy : std::uint8_t;
}

namespace skein::rt::detail {

class group_desk;
class groups;
class replies;

/// What group_handles tell who makes the calls of the process.
class driver_questions {
public:
    /// A worker asks its driver: the answer settles the call. body: written when it has an owner.
    virtual void ask_driver(counted_ptr<call_base> call, std::string name, std::uint16_t kind,
                            encoder body) = 0;

protected:
    ~driver_questions() = default;
};

class group_handles final : public group_home {
public:
    using state_ptr = counted_ptr<group_state>;

    group_handles(group_desk& desk, replies& answers, driver_questions& above) noexcept
        : desk_(desk), replies_(answers), above_(above) {}

    /// The driver that this worker has from now on; nullptr: none.
    void follow(peer* driver) noexcept { driver_ = driver; }
    [[nodiscard]] bool has_driver() const noexcept { return driver_ != nullptr; }

    [[nodiscard]] state_ptr make(const std::vector<std::string>& bundles, sched::group_strategy how,
                                 std::string_view name, bool get_if_exists);
    ///   errors  not_found
    [[nodiscard]] task<state_ptr> look_up(std::string name);
    /// A worker has got a handle in the arguments of a call, whose caller holds the group until
    /// the answer.
    [[nodiscard]] result<void> take(const group_answer& told, state_ptr& into);
    /// The driver's answer to look_up(). Null: it cannot be read.
    [[nodiscard]] state_ptr take_answer(byte_span answer);

    [[nodiscard]] bool is_elsewhere(const group_state& group) const noexcept override;
    [[nodiscard]] task<void> ask(state_ptr group, bool for_end) override;
    void end(group_state& group, const error& why) override;
    void drop(group_state& group) noexcept override;

private:
    void ask_driver(const counted_ptr<call_base>& call, group_question what, std::string name);
    void tell_driver(group_matter matter, group_question what);
    [[nodiscard]] state_ptr enter(const group_answer& told);
    [[nodiscard]] groups& table() const noexcept;

    group_desk& desk_;
    replies& replies_;
    driver_questions& above_;
    peer* driver_ = nullptr;
    borrows<std::uint64_t> borrowed_;
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/group_handles.ipp>
#endif
