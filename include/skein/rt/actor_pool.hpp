// SPDX-License-Identifier: Apache-2.0
#pragma once
// actor_pool<T>: many actors of one type that do the same; each call goes to the one with the least
// to do.
//
//     std::vector<skein::actor_handle<model>> team;
//     for (int i = 0; i < 4; ++i) team.push_back(co_await skein::actor<model>(weights));
//     skein::actor_pool<model> pool(std::move(team));
//     auto one = pool.submit<&model::score>(row);              // a ref, as from a handle
//     auto all = pool.map<&model::score>(std::move(rows));     // values in the order of the rows
//     std::vector<float> scores = co_await std::move(all);

#include <skein/core/check.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/wait_refs.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein {

/// Handles to actors that stand for each other. Copies share the actors.
template <class T>
class actor_pool {
public:
    /// At least one.
    explicit actor_pool(std::vector<actor_handle<T>> actors) : actors_(std::move(actors)) {
        SKEIN_CHECK(!actors_.empty(), "an actor_pool needs at least one actor");
    }

    [[nodiscard]] std::size_t size() const noexcept { return actors_.size(); }
    [[nodiscard]] const std::vector<actor_handle<T>>& actors() const noexcept { return actors_; }

    /// The actor with the fewest calls of this process without an outcome; of those with equally
    /// many, one after the other. One that is known to have ended is left out while there are
    /// others.
    [[nodiscard]] const actor_handle<T>& least_busy() {
        std::size_t best = next_ % actors_.size();
        for (std::size_t i = 1; i < actors_.size(); ++i) {
            const std::size_t at = (next_ + i) % actors_.size();
            if (goes_before(actors_[at], actors_[best])) best = at;
        }
        next_ = best + 1;
        return actors_[best];
    }

    /// Submits one call.
    template <auto M, class... A>
    auto submit(A&&... args) {
        return least_busy().template call<M>(std::forward<A>(args)...);
    }

    /// Calls a method once for each item, two ahead per actor, and gives the results in the order
    /// of the items.
    ///   errors  that of the first item whose call failed; the calls that have not ended then are
    ///           cancelled
    template <auto M, class Item>
    [[nodiscard]] auto map(std::vector<Item> items) {
        using result_type = typename rt::detail::signature<decltype(M)>::result;
        return run_map<M, result_type>(*this, std::move(items));
    }

private:
    static constexpr std::size_t ahead = 2;

    [[nodiscard]] static bool goes_before(const actor_handle<T>& a, const actor_handle<T>& b) {
        if (a.has_ended() != b.has_ended()) return b.has_ended();
        return a.pending() < b.pending();
    }

    template <class R>
    struct cancel_blocked {
        std::vector<ref<R>>& refs;
        ~cancel_blocked() {
            for (const auto& r : refs)
                if (r && !r.ready()) r.cancel();
        }
    };

    template <auto M, class R, class Item>
    static task<std::conditional_t<std::is_void_v<R>, void, std::vector<R>>> run_map(
        actor_pool pool, std::vector<Item> items) {
        std::vector<ref<R>> all, under_way;
        const cancel_blocked<R> at_end{all};
        all.reserve(items.size());
        for (auto& item : items) {
            if (under_way.size() >= ahead * pool.size()) {
                auto one = wait(std::move(under_way), 1);
                auto now = co_await one;
                under_way = std::move(now.pending);
            }
            all.push_back(pool.submit<M>(std::move(item)));
            under_way.push_back(all.back());
        }
        under_way.clear();
        if constexpr (std::is_void_v<R>) {
            for (auto& r : all) co_await r;
        } else {
            std::vector<R> results;
            results.reserve(all.size());
            for (auto& r : all) results.push_back(co_await std::move(r));
            co_return results;
        }
    }

    std::vector<actor_handle<T>> actors_;
    std::size_t next_ = 0;
};

} // namespace skein
