// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: how a program makes actors and finds them by name, and what
// their owner (detail/actor_owner.hpp) tells the calls and handles of this process.

#include <skein/core/check.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/wire/encode.hpp>

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// nullptr: none is set.
SKEIN_INLINE std::unique_ptr<actor_terms> terms_of(const actor_options& how) {
    SKEIN_CHECK(how.restarts >= -1, ".restarts = {} is not a number of times", how.restarts);
    SKEIN_CHECK(how.call_retries >= 0 && how.call_retries < 65536,
                ".call_retries = {} is not a number of times", how.call_retries);
    SKEIN_CHECK(how.snapshot_every >= 1, ".snapshot_every = {} is not a number of calls",
                how.snapshot_every);
    SKEIN_CHECK(how.max_pending >= 0 && how.max_concurrency >= 0,
                ".max_pending = {}, .max_concurrency = {}: they cannot be less than none",
                how.max_pending, how.max_concurrency);
    SKEIN_CHECK(how.name.size() <= actor_terms::longest_name,
                "the name of an actor has {} bytes, at most {} are allowed", how.name.size(),
                actor_terms::longest_name);
    SKEIN_CHECK(!how.get_if_exists || !how.name.empty(), ".get_if_exists needs a .name");
    if (how.restarts == 0 && how.max_pending == 0 && how.max_concurrency == 0 && how.name.empty())
        return nullptr;
    auto terms = std::make_unique<actor_terms>();
    terms->restarts = how.restarts;
    terms->call_retries = static_cast<std::uint16_t>(how.call_retries);
    terms->snapshot_every = static_cast<std::uint32_t>(how.snapshot_every);
    terms->max_pending = static_cast<std::uint32_t>(how.max_pending);
    terms->max_concurrency = static_cast<std::uint32_t>(how.max_concurrency);
    terms->name = how.name.view();
    terms->get_if_exists = how.get_if_exists;
    terms->is_detached = how.detached;
    return terms;
}

} // namespace detail

// ---- making ------------------------------------------------------------------------------------

SKEIN_INLINE counted_ptr<detail::actor_queue> runtime::declare_actor(detail::call_base& call,
                                                                     const actor_options& how,
                                                                     bool& exists) {
    auto terms = detail::terms_of(how);
    call.target = new_actor_id();
    set_demand(call, how);
    if (state_->upstream == nullptr) {
        const auto made = state_->actors.declare(call.target, terms.get(), *call.fn->actor);
        if (!made) {
            refuse(call, made.error());
            return {};
        }
        exists = *made != call.target;
        if (exists) return queue_for(*made);
        state_->actors.keep_demand(call);
    }
    auto queue = queue_for(call.target);
    queue->max_pending = terms ? terms->max_pending : 0;
    queue->is_detached = how.detached;
    if (state_->upstream != nullptr) state_->borrowed.hold(call.target); // by its driver's count
    if (terms) {
        queue->name = terms->name;
        call.extra().terms = std::move(terms);
        call.retries_left = 1; // says that they are there
    }
    return queue;
}

// ---- names -------------------------------------------------------------------------------------

SKEIN_INLINE counted_ptr<detail::actor_queue> runtime::find_actor(
    const counted_ptr<detail::call_base>& call, std::string_view name, const std::type_info& type) {
    call->extra().name = fmt::format("get_actor(\"{}\")", name);
    if (state_->space_server_end) {
        refuse(*call, is_closing(call->name()));
        return {};
    }
    if (state_->upstream == nullptr) {
        const auto found = state_->actors.named(name);
        const auto* const is = found ? state_->actors.find(*found)->type : nullptr;
        if (is != nullptr && *is == type) return queue_for(*found);
        refuse(*call,
               found ? detail::wrong_type(name, is->name(), type.name()) : error(found.error()));
        return {};
    }
    const auto question = [&](wire::writer& to) {
        wire::encode(to, std::string(type.name()));
        wire::encode(to, std::string(name));
    };
    state_->heard.ask_driver(call, call->name(), detail::message_find, question);
    return {};
}

/// Worker: its driver's answer settles the call.
SKEIN_INLINE void runtime::state::listener::ask_driver(counted_ptr<detail::call_base> call,
                                                       std::string title, std::uint16_t kind,
                                                       detail::encoder body) {
    call->extra().name = std::move(title);
    if (!self.prepare(*call)) return;
    auto& up = *self.state_->upstream;
    call->slot = self.take_slot(call);
    call->on = &up;
    call->state = detail::phase::queued;
    if (!up.wire->is_open()) return; // until the link is settled
    wire::writer written;
    body(written);
    up.wire->send(kind, 0, call->slot.value(), written.bytes(), {});
    call->state = detail::phase::sent;
}

SKEIN_INLINE void runtime::create_failed(actor_id id, const failure& why) {
    state_->actors.create_failed(id, why);
}

// ---- what the owner of actors tells ------------------------------------------------------------

SKEIN_INLINE counted_ptr<detail::call_base> runtime::state::listener::new_constructor(
    actor_id id, const detail::actor_plan& plan) {
    counted_ptr<detail::call_base> call(new detail::remake_call);
    call->fn = plan.fn;
    call->kind = detail::call_kind::create;
    call->target = id;
    call->demand = plan.demand;
    if (plan.beside) call->extra().beside = plan.beside;
    call->retries_left = 1; // there are terms
    if (!self.prepare(*call)) return {};
    wire::writer body;
    detail::encode_head(body, *call, self.state_->incarnation, false,
                        self.state_->dispatch.demands());
    auto terms = plan.terms;
    terms.has_snapshot = plan.snapshot.has_value();
    terms.snapshot_bytes = plan.snapshot ? plan.snapshot->size() : 0;
    terms.encode(body);
    body.raw(plan.arguments);
    if (plan.snapshot) body.raw(*plan.snapshot);
    call->body = std::move(body).take();
    call->state = detail::phase::queued;
    return call;
}

} // namespace skein::rt
