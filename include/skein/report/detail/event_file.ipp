// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/event_file.hpp>. Field numbers and wire types:
//     Event    1 wall_time double(1) 2 step int64(0) 3 file_version bytes(2) 5 summary bytes(2)
//     Summary  1 value bytes(2)        Value  1 tag bytes(2)   2 simple_value float(5)

#include <skein/core/crc32c.hpp>
#include <skein/core/posix_disk.hpp>

#include <bit>

#include <fmt/core.h>

#include <unistd.h>

namespace skein::report {

namespace detail {

SKEIN_INLINE void put_varint(byte_buffer& out, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::byte>(value | 0x80));
    out.push_back(static_cast<std::byte>(value));
}
template <class T>
void put_fixed(byte_buffer& out, T value) {
    std::byte raw[sizeof(T)];
    store_le(raw, value);
    append(out, raw);
}
SKEIN_INLINE void put_bytes(byte_buffer& out, int field, byte_span bytes) {
    put_varint(out, static_cast<std::uint64_t>(field) << 3 | 2);
    put_varint(out, bytes.size());
    append(out, bytes);
}

/// Walks the fields of one message.
class proto_reader {
public:
    explicit proto_reader(byte_span message) : rest_(message) {}

    int field = 0, type = 0;
    std::uint64_t number = 0; // of types 0, 1 and 5
    byte_span bytes;          // of type 2

    /// The next field; false at the end or when broken.
    bool next() {
        if (rest_.empty()) return false;
        std::uint64_t key = 0;
        if (!varint(key)) return false;
        field = static_cast<int>(key >> 3 & 0x1fffffff);
        type = static_cast<int>(key & 7);
        if (type == 0) return varint(number);
        if (type == 1) return fixed<std::uint64_t>();
        if (type == 5) return fixed<std::uint32_t>();
        std::uint64_t length = 0;
        if (type != 2 || !varint(length) || length > rest_.size()) return fail();
        bytes = rest_.first(length);
        rest_ = rest_.subspan(length);
        return true;
    }
    [[nodiscard]] bool broken() const noexcept { return broken_; }

private:
    bool fail() noexcept {
        broken_ = true;
        return false;
    }
    bool varint(std::uint64_t& value) {
        value = 0;
        for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
            const auto b = std::to_integer<std::uint64_t>(rest_[0]);
            rest_ = rest_.subspan(1);
            value |= (b & 0x7f) << shift;
            if (b < 0x80) return true;
        }
        return fail();
    }
    template <class T>
    bool fixed() {
        if (rest_.size() < sizeof(T)) return fail();
        number = load_le<T>(rest_.data());
        rest_ = rest_.subspan(sizeof(T));
        return true;
    }

    byte_span rest_;
    bool broken_ = false;
};

} // namespace detail

SKEIN_INLINE byte_buffer encode_event(const tb_event& event) {
    byte_buffer out;
    detail::put_varint(out, 1 << 3 | 1);
    detail::put_fixed(out, std::bit_cast<std::uint64_t>(event.wall_time));
    detail::put_varint(out, 2 << 3);
    detail::put_varint(out, static_cast<std::uint64_t>(event.step));
    if (!event.file_version.empty())
        detail::put_bytes(out, 3, as_bytes(std::string_view(event.file_version)));
    if (event.scalars.empty()) return out;
    byte_buffer summary;
    for (auto& [tag, value] : event.scalars) {
        byte_buffer one;
        detail::put_bytes(one, 1, as_bytes(std::string_view(tag)));
        detail::put_varint(one, 2 << 3 | 5);
        detail::put_fixed(one, std::bit_cast<std::uint32_t>(value));
        detail::put_bytes(summary, 1, one);
    }
    detail::put_bytes(out, 5, summary);
    return out;
}

SKEIN_INLINE result<tb_event> decode_event(byte_span bytes) {
    const auto malformed = error(errc::malformed, "an event that is not a protobuf message");
    tb_event event;
    detail::proto_reader fields(bytes);
    while (fields.next()) {
        if (fields.field == 1 && fields.type == 1)
            event.wall_time = std::bit_cast<double>(fields.number);
        if (fields.field == 2 && fields.type == 0)
            event.step = static_cast<std::int64_t>(fields.number);
        if (fields.field == 3 && fields.type == 2)
            event.file_version = skein::to_string(fields.bytes);
        if (fields.field != 5 || fields.type != 2) continue;
        detail::proto_reader values(fields.bytes);
        while (values.next()) {
            if (values.field != 1 || values.type != 2) continue;
            std::pair<std::string, float> scalar;
            detail::proto_reader parts(values.bytes);
            while (parts.next()) {
                if (parts.field == 1 && parts.type == 2)
                    scalar.first = skein::to_string(parts.bytes);
                if (parts.field == 2 && parts.type == 5)
                    scalar.second = std::bit_cast<float>(static_cast<std::uint32_t>(parts.number));
            }
            if (parts.broken()) return malformed;
            event.scalars.push_back(std::move(scalar));
        }
        if (values.broken()) return malformed;
    }
    if (fields.broken()) return malformed;
    return event;
}

SKEIN_INLINE void append_record(byte_buffer& out, byte_span data) {
    const auto begin = out.size();
    detail::put_fixed(out, static_cast<std::uint64_t>(data.size()));
    detail::put_fixed(out, masked_crc(crc32c(byte_span(out).subspan(begin, 8))));
    append(out, data);
    detail::put_fixed(out, masked_crc(crc32c(data)));
}

SKEIN_INLINE result<record_view> read_record(byte_span bytes) {
    if (bytes.size() < 12) return error(errc::malformed, "a record is cut off");
    if (load_le<std::uint32_t>(bytes.data() + 8) != masked_crc(crc32c(bytes.first(8))))
        return error(errc::corrupt, "the checksum of a record's length does not fit");
    const auto length = load_le<std::uint64_t>(bytes.data());
    if (length > bytes.size() - 12 || bytes.size() - 12 - length < 4)
        return error(errc::malformed, "a record is cut off");
    const auto data = bytes.subspan(12, length);
    if (load_le<std::uint32_t>(data.data() + data.size()) != masked_crc(crc32c(data)))
        return error(errc::corrupt, "the checksum of a record does not fit");
    return record_view{data, static_cast<std::size_t>(length) + 16};
}

SKEIN_INLINE result<std::unique_ptr<event_file>> event_file::open(const std::string& folder,
                                                                  double wall_time) {
    posix_disk disk(link_policy::refuse);
    const auto entries = disk.list(folder);
    if (!entries) return entries.error();
    std::string name;
    for (auto& entry : *entries) // sorted by name, so by time
        if (entry.name.starts_with("events.out.tfevents.") && entry.name.ends_with(".skein"))
            name = entry.name;
    const bool fresh = name.empty();
    if (fresh) {
        char host[256] = "localhost";
        (void)::gethostname(host, sizeof host - 1);
        host[sizeof host - 1] = '\0';
        name =
            fmt::format("events.out.tfevents.{:010}.{}.{}.skein",
                        static_cast<std::uint64_t>(wall_time), host, static_cast<long>(::getpid()));
    }
    const auto path = join_path(folder, name);
    auto opened = disk.open(path, open_mode::append);
    if (!opened) return opened.error();
    auto events = std::unique_ptr<event_file>(new event_file(std::move(*opened), path));
    const auto size = events->file_->size();
    if (!size) return size.error();
    if (*size == 0)
        if (auto done = events->clear(wall_time); !done) return done.error();
    return events;
}

SKEIN_INLINE result<void> event_file::clear(double wall_time) {
    if (auto done = file_->truncate(0); !done) return done;
    return append(
        {.wall_time = wall_time, .step = 0, .file_version = "brain.Event:2", .scalars = {}});
}

SKEIN_INLINE result<void> event_file::append(const tb_event& event) {
    byte_buffer record;
    append_record(record, encode_event(event));
    const auto before = file_->size();
    if (!before) return before.error();
    auto done = file_->append(record);
    if (!done) (void)file_->truncate(*before); // half a record would hide all that follow it
    return done;
}

SKEIN_INLINE result<void> event_file::scalar(std::string_view tag, std::uint64_t step, double value,
                                             double wall_time) {
    tb_event event{.wall_time = wall_time,
                   .step = static_cast<std::int64_t>(step),
                   .file_version = {},
                   .scalars = {}};
    event.scalars.emplace_back(std::string(tag), static_cast<float>(value));
    return append(event);
}

SKEIN_INLINE result<void> event_file::truncate_after(std::uint64_t step) {
    posix_disk disk(link_policy::refuse);
    const auto bytes = disk.read_whole(path_, std::uint64_t{4} << 30);
    if (!bytes) return bytes.error();
    std::size_t good = 0;
    while (good < bytes->size()) {
        const auto record = read_record(byte_span(*bytes).subspan(good));
        if (!record) break;
        const auto event = decode_event(record->data);
        if (!event || (event->step >= 0 && static_cast<std::uint64_t>(event->step) > step)) break;
        good += record->file_bytes;
    }
    return good < bytes->size() ? file_->truncate(good) : result<void>();
}

} // namespace skein::report
