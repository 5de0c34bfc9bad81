// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process says of objects to a store that is alone, by their numbers, and to one that has others
// beside it, by their names.

#include <skein/core/awaitable.hpp>
#include <skein/core/task.hpp>
#include <skein/net/requests.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/store_messages.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace skein::objects::detail {

inline void add_given(give_request& to, const object_name& which) {
    to.which.push_back(which.number);
}
inline void add_given(far_give_request& to, const object_name& which) { to.which.push_back(which); }

inline void set_store(give_request&, std::uint64_t) {}
inline void set_store(far_give_request& to, std::uint64_t store) { to.to_store = store; }

template <class Request>
[[nodiscard]] task<void> give_by(net::requests::handle over, std::vector<object_name> all,
                                 process_id to, std::uint64_t to_store) {
    for (std::size_t from = 0; from < all.size(); from += most_names) {
        const auto many = std::min(most_names, all.size() - from);
        Request what;
        what.to = to;
        set_store(what, to_store);
        for (std::size_t i = 0; i < many; ++i) add_given(what, all[from + i]);
        auto asking = shield(over->call<done_reply>(std::move(what)));
        (void)co_await asking;
    }
}

inline void add_let_go(release_note& to, const far_let_go& one) {
    to.all.push_back({one.which, one.times, one.pins});
}
inline void add_let_go(far_release_note& to, const far_let_go& one) { to.all.push_back(one); }

} // namespace skein::objects::detail
