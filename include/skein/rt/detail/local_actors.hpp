// SPDX-License-Identifier: Apache-2.0
#pragma once
// local_actors: the actors that live in this process, and what follows each call of one.
//
//     here     its calls run; after a call its state may be saved, for a driver that makes it again
//     leaving  a method has called leave_actor(): the actor ends when that method has
//     over     it was killed, has left, or nobody holds it: calls that still have its box start no
//              more
//
//     local_actors all(above);
//     all.insert(id, std::move(box));
//     all.method_ended(to, box, true);   // saved, or gone

#include <skein/core/bytes.hpp>
#include <skein/core/counted_ptr.hpp>
#include <skein/core/id_map.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/result.hpp>
#include <skein/rt/detail/actor_box.hpp>

#include <cstddef>
#include <string>

namespace skein::rt {

struct peer;

namespace detail {

struct actor_terms;

/// What the actors of a process tell and ask those who know actors beyond it.
class actor_events {
public:
    /// The name of an actor in messages, also of one that does not live here.
    [[nodiscard]] virtual std::string title_of(actor_id id) const = 0;
    /// An actor has left by itself. Its last reply follows.
    virtual void actor_has_left(actor_id id) = 0;

protected:
    ~actor_events() = default;
};

class local_actors {
public:
    explicit local_actors(actor_events& above) noexcept : above_(above) {}

    [[nodiscard]] std::size_t size() const noexcept { return boxes_.size(); }
    /// None: it does not live here.
    [[nodiscard]] const counted_ptr<actor_box>* find(actor_id id) noexcept {
        return boxes_.find(id);
    }
    [[nodiscard]] std::string title_of(actor_id id) const { return above_.title_of(id); }
    void insert(actor_id id, counted_ptr<actor_box> box);
    /// No handle to the actor is left.
    void drop(actor_id id) noexcept { boxes_.erase(id); }
    /// False: it does not live here.
    bool kill(actor_id id);
    void clear() noexcept { boxes_.clear(); }

    /// The actor of the method that runs now leaves after it.
    ///   errors  invalid_argument: no method runs
    void leave();
    /// A method is done and replies next. May throw what save() throws.
    void method_ended(peer& to, actor_box& box, bool changes);
    void method_failed(peer& to, actor_box& box, bool changes) noexcept;

private:
    static void save(peer& to, const actor_box& box);

    actor_events& above_;
    id_map<actor_id, counted_ptr<actor_box>> boxes_;
};

/// Makes a new actor what its options say, and what it was when it was saved.
[[nodiscard]] result<void> set_terms(actor_box& box, const actor_terms& terms, byte_span snapshot);

} // namespace detail
} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/local_actors.ipp>
#endif
