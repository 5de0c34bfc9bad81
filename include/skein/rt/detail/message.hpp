// SPDX-License-Identifier: Apache-2.0
#pragma once
// What nodes say to each other: frame kinds, the head of a call, and how a failure travels.
//
//     call     id = the call, body = call_head + arguments         submitter -> executor
//     reply    id = the call, flags: ok or failed, body = value or wire_failure
//     started  id = the call: it runs and has suspended            executor -> submitter
//     cancel   id = the call                                       submitter -> executor
//     drop     id = the actor: its last handle is gone             owner -> worker

#include <skein/rt/detail/call.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <typeinfo>

#include <cxxabi.h>

namespace skein::rt::detail {

enum message : std::uint16_t {
    message_call = 1,
    message_reply = 2,
    message_started = 3,
    message_cancel = 4,
    message_drop = 5,
};
inline constexpr std::uint16_t reply_ok = 0, reply_failed = 1;

/// In front of the arguments; 16 bytes, so that what follows stays aligned.
struct call_head {
    std::uint32_t function = 0;
    call_kind kind = call_kind::task;
    std::uint8_t retries = 0;
    std::uint16_t cpus = 0;
    std::uint64_t target = 0; ///< the actor; 0 for tasks

    static constexpr std::size_t bytes = 16;
    void encode(wire::writer& to) const {
        to.fixed(function);
        to.fixed(kind);
        to.fixed(retries);
        to.fixed(cpus);
        to.fixed(target);
    }
    /// False if the bytes are too short or not a call.
    bool decode(wire::reader& from) {
        return from.fixed(function) && from.fixed(kind) && from.fixed(retries) &&
               from.fixed(cpus) && from.fixed(target) && kind <= call_kind::create;
    }
};

/// What a worker tells of itself in identity::extra.
struct worker_hello {
    std::uint16_t cpus = 1;
};

/// Who executes, as failures and messages name it.
struct node_name {
    std::string name, host;
    std::int64_t pid = 0;

    [[nodiscard]] std::string describe() const {
        return fmt::format("{} (pid {} at {})", name, pid, host);
    }
};

/// A failure on its way.
struct wire_failure {
    skein::error what{errc::unknown, ""};
    bool thrown = false; ///< the four fields below say who threw what
    std::string worker, host, type, text;
    std::int64_t pid = 0;
};

inline void encode_failure(wire::writer& to, const failure& f) {
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

inline failure decode_failure(byte_span body) {
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
inline error located(const error& e, const std::string& place) {
    error out(e.code(), e.text());
    out.with_where(e.where().empty() ? place : place + ": " + e.where());
    if (!e.cause().empty()) out.with_cause(e.cause());
    if (!e.hint().empty()) out.with_hint(e.hint());
    return out;
}

/// The exception that a call of `function` threw on this node, ready to travel.
inline failure failure_of(const std::exception_ptr& thrown, const function_record& function,
                          const node_name& here) {
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
        from->text = e.what();
        return {located(e, place), std::move(from)};
    } catch (const std::exception& e) {
        from->type = readable_name(typeid(e).name());
        from->text = e.what();
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
