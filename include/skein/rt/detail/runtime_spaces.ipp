// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: namespaces, whose actors outlive the programs that made them. Their keeper is a
// driver without an app; programs are its guests: workers on which nothing runs. docs/design/0018-detached-actors.md

#include <skein/core/cancel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/runtime_books.hpp>
#include <skein/rt/ref.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE task<runtime*> runtime::enter_space(std::string space) {
    if (space.empty() || space.size() > detail::actor_terms::longest_name)
        throw error(errc::invalid_argument,
                    fmt::format("a namespace has 1 to {} bytes, not {}",
                                detail::actor_terms::longest_name, space.size()));
    if (books_->upstream != nullptr)
        throw error(errc::not_supported,
                    fmt::format("not supported: a worker asks for namespace \"{}\"", space))
            .with_hint("the program itself calls detached actors; the actors of a namespace find "
                       "each other by get_actor(name) alone");
    auto* const source = books_->leases.source;
    if (source == nullptr || books_->closing) throw is_closing("get_actor");
    if (source->has_spaces() && books_->start_workers) {
        books_->is_visiting = true;
        const task_context::use none(nullptr); // it does not belong to who asks first
        auto start = std::exchange(books_->start_workers, {});
        auto entered = source->enter(space); // first, so that no workers are asked for
        start();
        co_return co_await std::move(entered);
    }
    auto entered = source->enter(std::move(space));
    co_return co_await std::move(entered);
}

SKEIN_INLINE void runtime::keep_space(std::string space) {
    books_->space = std::move(space);
    books_->leases.all_own = true;
}

namespace detail {

/// The keeper answers who it has taken in; one that is ending does not.
SKEIN_INLINE task<void> knock(runtime* self, unique_function<void()>* taken) {
    co_await yield(); // until serve_driver() is at work
    counted_ptr<ref_state<void>> call(new ref_state<void>);
    (void)self->find_actor(call, {}, typeid(void));
    auto asked = as_result(as_task(ref<void>(std::move(call))));
    const auto answer = co_await asked;
    if (!answer && answer.error().code() == errc::not_found) (*taken)();
}

} // namespace detail

SKEIN_INLINE task<void> runtime::visit(std::shared_ptr<net::channel> wire, std::string space,
                                       unique_function<void()> taken, obituary after) {
    books_->space = std::move(space);
    books_->after_keeper = std::move(after);
    scope beside;
    beside.spawn(detail::knock(this, &taken));
    auto served = as_result(serve_driver(std::move(wire)));
    (void)co_await served;
    beside.cancel();
    auto asked = as_result(shield(beside.join()));
    (void)co_await asked;
}

/// Guest: what its calls fail with from now on.
SKEIN_INLINE task<std::string> runtime::end_of_keeper(std::shared_ptr<peer> l) {
    std::string how = l->orderly ? "it has ended" : l->why.what();
    try {
        auto asked = books_->after_keeper(*l);
        auto said = co_await asked;
        if (!said.empty()) how = std::move(said);
    } catch (const error&) { // then the link alone tells
    }
    books_->keeper_end =
        error(errc::worker_lost,
              fmt::format("the keeper of namespace \"{}\" was lost: {}", books_->space, how))
            .with_hint("get_actor says what is there now");
    co_return how;
}

SKEIN_INLINE error runtime::is_closing(const std::string& call) const {
    if (!books_->keeper_end)
        return error(errc::closed, call + " was called while the runtime is shutting down");
    return error(errc::worker_lost,
                 fmt::format("{} did not run: {}", call, books_->keeper_end->text()))
        .with_hint(std::string(books_->keeper_end->hint()));
}

SKEIN_INLINE std::size_t runtime::known_actors() const noexcept {
    return books_->actors.entries.size();
}
SKEIN_INLINE std::size_t runtime::guests() const noexcept {
    return static_cast<std::size_t>(std::count_if(books_->links.begin(), books_->links.end(),
                                                  [](auto& l) { return l->is_guest; }));
}

} // namespace skein::rt
