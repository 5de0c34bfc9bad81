// SPDX-License-Identifier: Apache-2.0
// What a process may say to a store, a store to another one, and a process of objects in a call, from
// any bytes: decoded within bounds or refused; and the books of a store under any order of steps.
#include <skein/objects/peer_messages.hpp>
#include <skein/objects/store_book.hpp>
#include <skein/objects/store_messages.hpp>
#include <skein/rt/detail/object_message.hpp>
#include <skein/wire/writer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

/// Three bytes are a step: what, by whom, which object.
void play(const std::uint8_t* data, std::size_t size) {
    using namespace skein::objects;
    store_book book(64 * 4096);
    for (std::uint64_t who = 1; who <= 3; ++who) book.begin(process_id(who));
    std::vector<object_number> back; ///< on their way, as a store keeps them
    for (; size >= 3; data += 3, size -= 3) {
        const process_id by(1 + data[1] % 4), to(1 + data[2] % 4);
        const object_number which(1 + data[2] / 4);
        const auto found = book.find(by, which);
        using presence = store_book::presence;
        switch (data[0] % 18) {
        case 0: (void)book.create(by, 4096u * (data[2] % 16) + 1); break;
        case 1: (void)book.seal(by, which); break;
        case 2: (void)book.give(by, which, to); break;
        case 3: (void)book.claim(by, which); break;
        case 4: (void)book.release(by, which, data[0] / 17); break;
        case 5: (void)book.take_free_pages(); break;
        case 6: (void)book.take(by, which, to); break;
        case 7: book.decline(by, to); break;
        case 8:
            if (found == presence::here) (void)book.pin(by, which);
            break;
        case 9: (void)book.unpin(by, which, data[0] / 18); break;
        case 10: book.read_freely(by); break;
        case 11: (void)book.read_only_what_is_pinned(by, {{which, data[0] / 18u, 0}}); break;
        case 12:
        case 13:
            for (const auto one : book.least_used(4096u * (data[2] % 16) + 1)) {
                book.keep(one);
                book.set_copy(one, true);
                book.let(one);
                if (!book.send_away(one)) std::abort(); // nobody reads it
            }
            break;
        case 14:
            if (found != presence::away || std::count(back.begin(), back.end(), which) != 0) break;
            book.keep(which);
            if (book.place(which))
                back.push_back(which);
            else
                book.let(which);
            break;
        case 15:
            if (back.empty()) break;
            book.placed(back.back(), data[1] % 2 != 0);
            book.let(back.back());
            back.pop_back();
            break;
        case 16: (void)book.give(by, which, to, process_id(1)); break;
        default: book.end_unseen(by);
        }
        const auto now = book.usage();
        if (now.granted + now.sealed > now.bytes) std::abort();
        for (const auto one : book.take_gone())
            if (book.find(by, one) != presence::gone) std::abort();
    }
    for (std::uint64_t who = 1; who <= 4; ++who) book.end(process_id(who));
    for (const auto one : back) {
        book.placed(one, true);
        book.let(one);
    }
    const auto left = book.usage();
    if (left.objects != 0 || left.pinned != 0 || left.away != 0) std::abort();
    if (!book.create(process_id(9), 64 * 4096)) std::abort(); // one piece again
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const skein::byte_span body(reinterpret_cast<const std::byte*>(data + 1), size - 1);
    const auto read = skein::objects::store_messages::check(data[0], body);
    if (!read && read.error().text().empty()) std::abort();
    const auto of_store = skein::objects::peer_messages::check(data[0], body);
    if (!of_store && of_store.error().text().empty()) std::abort();
    skein::byte_span rest = body;
    std::vector<skein::rt::detail::object_use> uses;
    std::vector<skein::byte_span> values;
    if (skein::rt::detail::take_uses(rest, uses, &values)) {
        skein::wire::writer again;
        again.raw(rest);
        for (const auto& one : values) again.raw(one);
        skein::rt::detail::append_uses(again, uses);
        if (again.size() != body.size()) std::abort();
    }
    play(data, size);
    return 0;
}
