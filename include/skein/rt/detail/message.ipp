// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/message.hpp: how a failure travels.

#include <skein/core/type_name.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include <cxxabi.h>

namespace skein::rt::detail {

/// A failure on its way.
struct wire_failure {
    skein::error what{errc::unknown, ""};
    bool thrown = false; ///< the four fields below say who threw what
    std::string worker, host, type, text;
    std::int64_t pid = 0;
};

SKEIN_INLINE void lending_reply::append(wire::writer& to, const std::vector<actor_id>& actors) {
    for (const auto id : actors) put_actor(to, id);
    to.fixed(static_cast<std::uint32_t>(actors.size()));
}

SKEIN_INLINE bool lending_reply::decode(byte_span body) {
    std::uint32_t n = 0;
    if (body.size() < sizeof(n)) return false;
    wire::reader end(body.last(sizeof(n)));
    (void)end.fixed(n);
    const auto rest = body.first(body.size() - sizeof(n));
    if (n > rest.size() / sizeof(unique_number)) return false;
    value = rest.first(rest.size() - n * sizeof(unique_number));
    wire::reader numbers(rest.last(n * sizeof(unique_number)));
    actors.resize(n);
    for (auto& id : actors) (void)get_actor_id(numbers, id);
    return true;
}

SKEIN_INLINE void encode_failure(wire::writer& to, const failure& f) {
    wire_failure out;
    out.what = f.what;
    if (f.from) {
        out.thrown = true;
        out.worker = f.from->worker;
        out.host = f.from->host;
        out.type = f.from->type;
        out.text = f.from->text;
        out.pid = f.from->pid;
    }
    wire::encode(to, out.what);
    wire::encode(to, out.thrown);
    if (!out.thrown) return;
    for (const auto* s : {&out.worker, &out.host, &out.type, &out.text}) wire::encode(to, *s);
    wire::encode(to, out.pid);
}

SKEIN_INLINE failure decode_failure(byte_span body) {
    wire::reader in(body);
    wire_failure got;
    wire::detail::read(in, got.what);
    wire::detail::read(in, got.thrown);
    if (in.ok() && got.thrown) {
        for (auto* s : {&got.worker, &got.host, &got.type, &got.text}) wire::detail::read(in, *s);
        wire::detail::read(in, got.pid);
    }
    if (!in.finish()) return {in.status().error(), nullptr};
    failure out{std::move(got.what), nullptr};
    if (got.thrown) {
        auto from = std::make_shared<remote_error::origin>();
        from->worker = std::move(got.worker);
        from->host = std::move(got.host);
        from->type = std::move(got.type);
        from->text = std::move(got.text);
        from->pid = got.pid;
        out.from = std::move(from);
    }
    return out;
}

/// Puts "function on worker-1 (pid 7 at host)" in front of an error's where.
SKEIN_INLINE error located(const error& e, const std::string& place) {
    error out(e.code(), bounded_text(e.text()));
    out.with_where(e.where().empty() ? place : bounded_text(place + ": " + e.where()));
    if (!e.cause().empty()) out.with_cause(bounded_text(e.cause()));
    if (!e.hint().empty()) out.with_hint(bounded_text(e.hint()));
    return out;
}

SKEIN_INLINE failure failure_of(const std::exception_ptr& thrown, const function_record& function,
                                const process_name& here) {
    const auto place = function.name + " on " + here.describe();
    auto from = std::make_shared<remote_error::origin>();
    from->worker = here.name;
    from->host = here.host;
    from->pid = here.pid;
    try {
        std::rethrow_exception(thrown);
    } catch (const remote_error& e) { // of a call that this call made
        from->worker = e.worker();
        from->host = e.host();
        from->pid = e.pid();
        from->type = e.remote_type();
        from->text = e.remote_text();
        return {located(e, place), std::move(from)};
    } catch (const error& e) {
        from->type = readable_name(typeid(e).name());
        from->text = bounded_text(text_of(e));
        return {located(e, place), std::move(from)};
    } catch (const std::exception& e) {
        from->type = readable_name(typeid(e).name());
        from->text = bounded_text(text_of(e));
    } catch (...) {
        const auto* type = abi::__cxa_current_exception_type();
        from->type = type != nullptr ? readable_name(type->name()) : "unknown";
        from->text = "not a std::exception";
    }
    error shown(errc::remote_exception, from->type + ": " + from->text);
    shown.with_where(place);
    return {std::move(shown), std::move(from)};
}

} // namespace skein::rt::detail
