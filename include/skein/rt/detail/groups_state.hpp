// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a driver knows of its placement groups. Part of detail/runtime_state.hpp.

#include <skein/core/counted_ptr.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/result.hpp>
#include <skein/core/task.hpp>
#include <skein/sched/resources.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::rt {

class runtime;
using peer_id = strong_id<struct peer_tag>;
using slot_id = strong_id<struct slot_tag>;

namespace detail {

/// A placement group as those see it who hold it: handles, tasks that are to run in it, actors that
/// live in it.
class group_state {
public:
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) last_use_gone();
    }

    runtime* owner = nullptr; ///< nullptr: the runtime has ended
    std::uint64_t number = 0; ///< 0: it was never asked for
    std::vector<sched::resources> bundles;
    bool placed = false;
    bool is_gone = false;     ///< nothing of it is left
    std::optional<error> why; ///< it is over: what those in it are told
    event changed;
    std::string name;        ///< empty: none
    std::uint32_t holds = 0; ///< worker: times its driver knows of the handles here
    bool is_lent = false;    ///< worker: one of them has come in a call, and the driver knows that
    std::uint64_t at_driver = 0; ///< worker: its number there, of one made here; 0: not told yet
    /// Driver: workers that wait for it.
    struct asker {
        peer_id link;
        slot_id slot;
        call_id parent;       ///< the call that waits there; none
        bool for_end = false; ///< until nothing of it is left, not until it is placed
    };
    std::vector<asker> askers;

private:
    void last_use_gone() noexcept;
    std::uint32_t uses_ = 0;
};

/// Kept until nobody holds it and whoever placed it has said that nothing of it is left.
struct group_entry {
    group_state* state = nullptr; ///< nullptr: nobody holds it
    bool dropped = false;         ///< the source of workers has been told
    bool is_gone = false;
};

/// A group that a worker holds, as its driver knows it.
struct held_group {
    counted_ptr<group_state> state; ///< nullptr: it had ended before the worker told of it
    std::uint32_t times = 0;
    bool is_lent = false; ///< by a call: an actor that is made again gets it again
};

struct groups_state {
    std::map<std::uint64_t, group_entry> entries;
    std::map<std::string, std::uint64_t, std::less<>> names;
    std::uint64_t last = 0;
    /// Of links that are lost while actors that lived there are made again; as
    /// actors_state::late_holds.
    std::map<peer_id, std::vector<counted_ptr<group_state>>> late_holds;

    /// Those that are held: what follows may end some of them.
    [[nodiscard]] std::vector<counted_ptr<group_state>> held() const {
        std::vector<counted_ptr<group_state>> out;
        for (const auto& [number, entry] : entries)
            if (entry.state != nullptr) out.emplace_back(entry.state);
        return out;
    }
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
