// SPDX-License-Identifier: Apache-2.0
#pragma once
// What nodes say to each other: frame kinds, the head of a call, and how a failure travels.
//
//     call     id = the call, body = call_head + arguments         submitter -> executor
//     reply    id = the call, flags: ok or failed, body = value or wire_failure
//     started  id = the call: it runs and has suspended            executor -> submitter
//     held     id = the call: it waits for others of its method_group, or of .max_concurrency
//              executor -> submitter
//     passed   id = a call that was taken back: its place has come, and was passed by worker ->
//              driver
//     cancel   id = the call, flags: by force                      submitter -> executor
//     item     id = the call, body = what its generator has yielded   executor -> submitter
//     taken    id = the call, body = items_taken                      submitter -> executor
//     drop     body = the actor: its last handle is gone            driver -> worker
//     kill     body = the actor: it ends at once                     worker -> driver -> worker
//
// Of actors, from a worker to its driver; each body begins with the actor's number:
//
//     snapshot   its state, after a call whose reply follows
//     hold       there are handles to it here, once more
//     release    and so often there are none any more
//     left       it has ended by itself
//     find       id = who asks, body = type and name                a reply brings its number
//
// store, from a worker to its driver: it is about to use the store of its node; on a cluster the driver
// says back where its own store is, for that to meet it: body = an address. What calls and replies say
// of objects is in detail/object_message.hpp.
//
// values_wanted, id = the call: its objects cannot be had from where they are; who has sent it gives
// their values: values, id = the call, flags: ok or failed, body = the objects, or wire_failure. A
// driver passes both on.
//
// Of placement groups, from a worker to its driver: group, body = group_question,
// detail/group_message.hpp.
//
// Workers call the actors of each other over links of their own, which carry call, cancel, reply,
// started, held, item, taken, values_wanted and values alone; what they need their driver for is in
// detail/direct_message.hpp, and for namespaces in detail/space_state.hpp.
//
// A reply with the flag `lends` has the numbers of the actors at its end whose handles are in the
// value.

#include <skein/rt/detail/call.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace skein::rt::detail {

enum message : std::uint16_t {
    message_call = 1,
    message_reply = 2,
    message_started = 3,
    message_cancel = 4,
    message_drop = 5,
    message_snapshot = 6,
    message_hold = 7,
    message_release = 8,
    message_kill = 10,
    message_left = 11,
    message_find = 12,
    message_where = 13,
    message_there = 14,
    message_lost = 15,
    message_end = 16,
    message_relay = 17,
    message_busy = 18,
    message_waits = 19,
    message_cut = 20,
    message_held = 21,
    message_passed = 22,
    message_space = 23,
    message_space_there = 24,
    message_space_end = 25,
    message_group = 26,
    message_item = 40,
    message_taken = 41,
    message_store = 48,
    message_values_wanted = 49,
    message_values = 50,
};
/// reply_counted: of a stream that failed, beside reply_failed: its items are counted in front.
inline constexpr std::uint16_t reply_ok = 0, reply_failed = 1, reply_lends = 2, reply_object = 4,
                               reply_refs = 8, reply_counted = 64;
/// A combination of these that a reply can have.
[[nodiscard]] constexpr bool is_outcome(std::uint16_t flags) noexcept {
    return flags <= reply_lends || flags == reply_object || flags == reply_refs ||
           flags == (reply_refs | reply_lends) || flags == (reply_failed | reply_counted);
}
[[nodiscard]] constexpr bool has_objects(std::uint16_t outcome) noexcept {
    return (outcome & (reply_object | reply_refs)) != 0;
}
inline constexpr std::uint16_t flag_by_force = 1; ///< of a cancel

/// In front of the arguments; a multiple of 16 bytes, so that what follows stays aligned: 16 for a
/// task of a driver, 16 more for the actor, 48 more for who asks, if that is not the peer's own
/// first call, the text of a demand that is more than a number of cpus, and that of failures after
/// which the task runs again.
struct call_head {
    std::uint32_t function = 0;
    call_kind kind = call_kind::task;
    std::uint8_t retries = 0;
    std::uint16_t cpus = 0;
    actor_id target; ///< none for tasks
    trace_context who;
    bool is_told = false; ///< who travels, not its number alone
    // Texts of what is decoded are in its bytes.
    std::string_view demand{};   ///< see sched::demand_table::text(); "": `cpus` says it all
    std::string_view retry_on{}; ///< see failures::text(); "": none

    static constexpr std::size_t most_retry_on = 4096; ///< bytes
    static constexpr std::uint8_t told_bit = 0x80, demand_bit = 0x40, retry_on_bit = 0x20,
                                  objects_bit = 0x10;
    /// Where these bits are, in an encoded call.
    static constexpr std::size_t bits_at = 4;
    /// Whether objects stand behind the arguments of an encoded call.
    [[nodiscard]] static bool has_objects(byte_span body) noexcept {
        return body.size() > bits_at &&
               (std::to_integer<std::uint8_t>(body[bits_at]) & objects_bit) != 0;
    }
    /// Where what is left of the deadline stands, in a call that tells who asks.
    [[nodiscard]] static constexpr std::size_t left_at(call_kind kind) noexcept {
        return kind == call_kind::task ? 24 : 40;
    }

    void encode(wire::writer& to, time_point now) const {
        const std::size_t bytes = 16U + (kind != call_kind::task ? 16U : 0U) + (is_told ? 48U : 0U);
        std::byte* at = to.extend(bytes); // at once: there is a head for each call
        store_le(at, function);
        store_le(at + 4, static_cast<std::uint8_t>(static_cast<std::uint8_t>(kind) |
                                                   (is_told ? told_bit : 0) |
                                                   (demand.empty() ? 0 : demand_bit) |
                                                   (retry_on.empty() ? 0 : retry_on_bit)));
        store_le(at + 5, retries);
        store_le(at + 6, cpus);
        store_le(at + 8, who.id.value().number);
        at += 16;
        if (kind != call_kind::task) at = put(at, target.value());
        if (is_told) {
            // Clocks of hosts differ: what is left of the time travels.
            const bool has_end = who.until != time_point::max();
            const auto left = has_end ? std::max<std::int64_t>((who.until - now).count(), 0) : -1;
            store_le(at, who.id.value().incarnation);
            store_le(at + 8, static_cast<std::uint64_t>(left));
            put(put(at + 16, who.trace.value()), who.parent.value());
        }
        if (!demand.empty()) put(to, demand);
        if (!retry_on.empty()) put(to, retry_on);
    }
    /// The same of a method without a deadline, straight from the call: most are such.
    static void encode_method(wire::writer& to, const call_base& call, std::uint64_t incarnation,
                              bool is_told) {
        std::byte* const at = to.extend(is_told ? 80 : 32);
        // In the units in which the checksum reads it: it would wait for two stores that make up
        // one of them.
        store_le(at, std::uint64_t{call.fn->index} |
                         std::uint64_t{static_cast<std::uint8_t>(call_kind::method) |
                                       (is_told ? told_bit : 0U)}
                             << 32 |
                         std::uint64_t{call.retries_left} << 40 | std::uint64_t{call.cpus} << 48);
        store_le(at + 8, call.number);
        put(at + 16, call.target.value());
        if (!is_told) return;
        const unique_number id{incarnation, call.number};
        const auto* const parent = call.parent.get();
        store_le(at + 32, incarnation);
        store_le(at + 40, ~std::uint64_t{0}); // no deadline
        put(at + 48, parent != nullptr ? parent->who.trace.value() : id);
        put(at + 64, parent != nullptr ? parent->who.id.value() : unique_number{});
    }
    /// False if the bytes are too short or not a call. `sender` is whose calls are not told.
    bool decode(wire::reader& from, std::uint64_t sender, time_point now) {
        byte_span first;
        if (!from.raw(16, first)) return false;
        const std::byte* const at = first.data();
        function = load_le<std::uint32_t>(at);
        const auto how = load_le<std::uint8_t>(at + 4);
        retries = load_le<std::uint8_t>(at + 5);
        cpus = load_le<std::uint16_t>(at + 6);
        const unique_number id{sender, load_le<std::uint64_t>(at + 8)};
        is_told = (how & told_bit) != 0;
        kind = static_cast<call_kind>(how & ~(told_bit | demand_bit | retry_on_bit | objects_bit));
        if (kind > call_kind::create) return false;
        target = actor_id();
        if (kind != call_kind::task) {
            byte_span actor;
            if (!from.raw(16, actor)) return false;
            target = actor_id(get(actor.data()));
        }
        who.id = who.trace = call_id(id);
        if (is_told && !decode_who(from, id, now)) return false;
        return ((how & demand_bit) == 0 || get(from, demand)) &&
               ((how & retry_on_bit) == 0 || get(from, retry_on));
    }

private:
    bool decode_who(wire::reader& from, unique_number id, time_point now) {
        byte_span all;
        if (!from.raw(48, all)) return false;
        const std::byte* const at = all.data();
        id.incarnation = load_le<std::uint64_t>(at);
        const auto left = static_cast<std::int64_t>(load_le<std::uint64_t>(at + 8));
        if (left < -1) return false;
        who = {call_id(id), call_id(get(at + 16)), call_id(get(at + 32))};
        if (left >= 0) who.until = deadline_after(now, duration(left));
        return true;
    }
    static void put(wire::writer& to, std::string_view text) {
        to.fixed(static_cast<std::uint16_t>(text.size()));
        to.raw(as_bytes(text));
        for (auto n = padding(text.size()); n > 0; --n) to.fixed(std::uint8_t{0});
    }
    static bool get(wire::reader& from, std::string_view& text) {
        std::uint16_t size = 0;
        byte_span read, rest;
        if (!from.fixed(size) || size == 0 || !from.raw(size, read) ||
            !from.raw(padding(size), rest))
            return false;
        text = as_text(read);
        return true;
    }
    [[nodiscard]] static constexpr std::size_t padding(std::size_t text) noexcept {
        return (16 - (sizeof(std::uint16_t) + text) % 16) % 16;
    }
    static std::byte* put(std::byte* to, const unique_number& n) {
        store_le(to, n.incarnation);
        store_le(to + 8, n.number);
        return to + 16;
    }
    static unique_number get(const std::byte* from) {
        return {load_le<std::uint64_t>(from), load_le<std::uint64_t>(from + 8)};
    }
};

/// What a worker tells of itself in identity::extra.
struct worker_hello {
    std::uint16_t cpus = 1;
    bool shares_memory = false;    ///< it has the page of claims that its driver gave it
    std::uint64_t incarnation = 0; ///< of its process, see unique_number
    /// Where other workers reach it: on its host, and from others. Empty: nowhere. tcp:*:port has
    /// its host from the link to the driver.
    std::string near_address, far_address;
    std::string space;       ///< a driver's: it is the space server of this namespace
    bool has_store = false;  ///< a driver's: its store is one of many, on other nodes
    std::uint64_t store = 0; ///< which of many it uses, or is about to
};

/// The parts of the body of a reply that lends.
struct lending_reply {
    byte_span value;
    std::vector<actor_id> actors;

    static void append(wire::writer& to, const std::vector<actor_id>& actors);
    /// False if the bytes are too short.
    [[nodiscard]] bool decode(byte_span body);
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
