// SPDX-License-Identifier: Apache-2.0
#include <skein/core/crc32c.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/report/event_file.hpp>

#include <support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::report;

namespace {

std::vector<tb_event> events_in(const std::string& path) {
    posix_disk disk;
    const auto bytes = disk.read_whole(path).value();
    std::vector<tb_event> events;
    for (std::size_t at = 0; at < bytes.size();) {
        const auto record = read_record(byte_span(bytes).subspan(at)).value();
        events.push_back(decode_event(record.data).value());
        at += record.file_bytes;
    }
    return events;
}

} // namespace

TEST_CASE("an event is the protobuf bytes TensorFlow writes") {
    // tf.compat.v1.Event(wall_time=1.5, step=300, summary=Summary(value=[Value(tag="loss",
    // simple_value=0.5)]))
    const tb_event event{
        .wall_time = 1.5, .step = 300, .file_version = {}, .scalars = {{"loss", 0.5f}}};
    CHECK(to_hex(encode_event(event)) == "09000000000000f83f"   // 1: double
                                         "10ac02"               // 2: varint 300
                                         "2a0d0a0b0a046c6f7373" // 5: summary { 1: value { 1: "loss"
                                         "150000003f");         //      2: float } }
    const tb_event version{
        .wall_time = 0.0, .step = 0, .file_version = "brain.Event:2", .scalars = {}};
    CHECK(to_hex(encode_event(version)) == "090000000000000000"
                                           "1000"
                                           "1a0d627261696e2e4576656e743a32");
    CHECK(decode_event(encode_event(event)).value() == event);
    CHECK(decode_event(encode_event(version)).value() == version);
}

TEST_CASE("the masked checksum is TensorFlow's") {
    // crc32c of 8 zero bytes is 0x8c28b28a; mask: ((crc >> 15) | (crc << 17)) + 0xa282ead8.
    const byte_buffer zeros(8);
    CHECK(crc32c(zeros) == 0x8c28b28au);
    CHECK(masked_crc(0x8c28b28au) == 0x07980329u);
}

TEST_CASE("a record is refused when any bit of it is flipped or any byte is missing") {
    byte_buffer record;
    append_record(record, as_bytes(std::string_view("hello")));
    REQUIRE(record.size() == 21);
    const auto whole = read_record(record).value();
    CHECK(as_text(whole.data) == "hello");
    CHECK(whole.file_bytes == 21);
    for (std::size_t bit = 0; bit < record.size() * 8; ++bit) {
        record[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        REQUIRE_FALSE(read_record(record));
        record[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    for (std::size_t n = 0; n < record.size(); ++n)
        REQUIRE_FALSE(read_record(byte_span(record).first(n)));
}

TEST_CASE("an event cut off anywhere is malformed or a shorter event, never a crash") {
    const auto bytes = encode_event({.wall_time = 1.5,
                                     .step = 300,
                                     .file_version = {},
                                     .scalars = {{"loss", 0.5f}, {"x", 1.f}}});
    for (std::size_t n = 0; n < bytes.size(); ++n) {
        const auto event = decode_event(byte_span(bytes).first(n));
        if (event) CHECK(event->scalars.empty());
    }
}

TEST_CASE("a run's event file begins with a version line and is found again") {
    test::temporary_folder folder;
    std::string path;
    {
        auto events = event_file::open(folder.path, 100.0).value();
        path = events->path();
        events->scalar("loss", 1, 2.5, 101.0).value();
        events->scalar("loss", 2, 2.25, 102.0).value();
    }
    CHECK(path.find("/events.out.tfevents.0000000100.") != std::string::npos);
    auto again = event_file::open(folder.path, 500.0).value();
    CHECK(again->path() == path);
    again->scalar("loss", 3, 2.0, 503.0).value();
    const auto events = events_in(path);
    REQUIRE(events.size() == 4);
    CHECK(events[0].file_version == "brain.Event:2");
    CHECK(events[1].step == 1);
    CHECK(events[3].scalars[0].second == 2.0f);
}

TEST_CASE("events behind a resumed step and torn records are cut off") {
    test::temporary_folder folder;
    auto events = event_file::open(folder.path, 100.0).value();
    for (std::uint64_t step : {1, 2, 3, 4}) events->scalar("loss", step, 1.0, 100.0).value();
    events->truncate_after(3).value();
    CHECK(events_in(events->path()).size() == 4);
    posix_disk disk;
    disk.open(events->path(), open_mode::append)
        .value()
        ->append(as_bytes(std::string_view("torn")))
        .value();
    events->truncate_after(3).value();
    CHECK(events_in(events->path()).size() == 4);
    events->clear(7.0).value();
    CHECK(events_in(events->path()).size() == 1);
}
