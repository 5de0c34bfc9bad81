// SPDX-License-Identifier: Apache-2.0
// Any bytes as an answer of etcd's gateway, as a line of its watch, and as the value of a key: read or
// refused with an error. What is read as a view or a place is written as it was read.
//
// The first byte chooses who reads the rest.
#include <skein/spmd/detail/etcd_messages.hpp>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

using namespace skein;
using namespace skein::spmd::detail;

namespace {

void expect(bool holds) {
    if (!holds) std::abort();
}

/// A value has nothing that could be taken for another request's end, and no more bytes than came.
void check_value(const etcd_value& kv, std::string_view text) {
    expect(kv.value.size() <= text.size());
    expect(kv.mod_revision >= 0);
}

void check_stored(std::string_view text) {
    if (const auto stored = read_view(text)) {
        expect(stored->now.generation > 0);
        expect(stored->before.size() <= etcd_views_named);
        const auto again = read_view(write_view(*stored));
        expect(again.has_value() && *again == *stored);
    }
    if (const auto place = read_place(text)) {
        expect(place->id != 0);
        const auto again = read_place(write_place(*place));
        expect(again.has_value() && *again == *place);
    }
}

void check_base64(std::string_view text) {
    expect(from_base64(to_base64(text)).value() == text);
    if (const auto bytes = from_base64(text)) expect(to_base64(*bytes) == text);
}

void check_lease(const result<etcd_lease>& lease) {
    if (lease) expect(lease->ttl >= 0 && lease->ttl <= 9'000'000'000);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 1) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0] % 9) {
    case 0:
        if (const auto range = read_range(text)) check_value(range->kv, text);
        break;
    case 1:
        if (const auto swap = read_swap(text)) check_value(swap->now, text);
        break;
    case 2: check_lease(read_grant(text)); break;
    case 3: check_lease(read_keep_alive(text)); break;
    case 4:
        if (const auto token = read_token(text)) // it goes into a header
            expect(!token->token.empty() &&
                   token->token.find_first_of("\r\n\0 ", 0, 4) == std::string::npos);
        break;
    case 5:
        if (const auto line = read_watch_line(text))
            for (const auto& kv : line->now) check_value(kv, text);
        break;
    case 6: {
        const auto failure = read_failure(text);
        expect(failure.code == -1 || (failure.code > 0 && failure.code < 100));
        expect(read_version(text).size() < 32);
        (void)read_done(text);
        break;
    }
    case 7: check_stored(text); break;
    default: check_base64(text); break;
    }
    return 0;
}
