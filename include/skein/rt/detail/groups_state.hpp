// SPDX-License-Identifier: Apache-2.0
#pragma once
// group_state: a placement group, as those see it who hold it.

#include <skein/core/counted_ptr.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/result.hpp>
#include <skein/core/task.hpp>
#include <skein/rt/detail/peer_id.hpp>
#include <skein/sched/resources.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::rt {

using slot_id = strong_id<struct slot_tag>;

namespace detail {

class group_state;

/// Whom a group's handles ask about it.
class group_home {
public:
    /// A worker that its driver has told of the group: it is to be asked.
    [[nodiscard]] virtual bool is_elsewhere(const group_state& group) const noexcept = 0;
    /// Asks the driver, and waits until all bundles have places, or nothing of the group is left.
    [[nodiscard]] virtual task<void> ask(counted_ptr<group_state> group, bool for_end) = 0;
    virtual void end(group_state& group, const error& why) = 0;
    /// The last use is gone.
    virtual void drop(group_state& group) noexcept = 0;

protected:
    ~group_home() = default;
};

/// A placement group as those see it who hold it: handles, tasks that are to run in it, actors that
/// live in it.
class group_state {
public:
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) last_use_gone();
    }

    group_home* home = nullptr; ///< nullptr: the runtime has ended
    std::uint64_t number = 0;   ///< 0: it was never asked for
    std::vector<sched::resources> bundles;
    bool placed = false;
    bool is_gone = false;     ///< nothing of it is left
    std::optional<error> why; ///< it is over: what those in it are told
    event changed;
    std::string name;            ///< empty: none
    std::uint64_t at_driver = 0; ///< worker: its number there, of one made here; 0: not told yet
    /// Driver: workers that wait for it.
    struct asker {
        peer_id link;
        slot_id slot;
        call_id parent;       ///< the call that waits there; none
        bool for_end = false; ///< until nothing of it is left, not until it is placed
    };
    std::vector<asker> askers;

    /// Takes those of a worker out: one, or all.
    [[nodiscard]] std::vector<asker> take_askers(peer_id link, std::optional<slot_id> slot) {
        const auto is_over = [&](const asker& one) {
            return one.link == link && (!slot || one.slot == *slot);
        };
        std::vector<asker> over;
        std::copy_if(askers.begin(), askers.end(), std::back_inserter(over), is_over);
        std::erase_if(askers, is_over);
        return over;
    }

private:
    void last_use_gone() noexcept;
    std::uint32_t uses_ = 0;
};

/// Why a demand cannot be met in a group; nothing: it can.
[[nodiscard]] std::optional<error> misfit(const group_state& group, const sched::resources& need,
                                          int bundle);
/// Waits until all bundles have places.
[[nodiscard]] task<void> group_is_ready(counted_ptr<group_state> group);
/// Ends a group, and waits until nothing of it is left.
[[nodiscard]] task<void> remove_group(counted_ptr<group_state> group);

/// How a handle travels: in the arguments of calls, under the driver's number.
void encode_group(wire::writer& to, const counted_ptr<group_state>& group);
[[nodiscard]] result<void> decode_group(wire::reader& from, counted_ptr<group_state>& into);

} // namespace detail
} // namespace skein::rt
