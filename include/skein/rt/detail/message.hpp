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
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <cstdint>
#include <exception>
#include <string>

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
    actor_id target; ///< none for tasks

    static constexpr std::size_t bytes = 16;
    void encode(wire::writer& to) const {
        to.fixed(function);
        to.fixed(kind);
        to.fixed(retries);
        to.fixed(cpus);
        to.fixed(target.value());
    }
    /// False if the bytes are too short or not a call.
    bool decode(wire::reader& from) {
        std::uint64_t actor = 0;
        if (!from.fixed(function) || !from.fixed(kind) || !from.fixed(retries) ||
            !from.fixed(cpus) || !from.fixed(actor))
            return false;
        target = actor_id(actor);
        return kind <= call_kind::create;
    }
};

/// What a worker tells of itself in identity::extra.
struct worker_hello {
    std::uint16_t cpus = 1;
};

void encode_failure(wire::writer& to, const failure& f);
[[nodiscard]] failure decode_failure(byte_span body);

/// The exception that a call of `function` threw here, ready to travel.
[[nodiscard]] failure failure_of(const std::exception_ptr& thrown, const function_record& function,
                                 const process_name& here);

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/message.ipp>
#endif
