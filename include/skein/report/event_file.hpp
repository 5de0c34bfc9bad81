// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scalars for TensorBoard, written without TensorBoard or protobuf.
//
// An event file is a TFRecord file of Event messages; three fields of two messages are enough, so
// they are encoded by hand. Records are {u64 length, masked crc32c of it, data, masked crc32c}.
//   source: tensorflow/core/lib/io/record_writer.h, core/util/event.proto,
//   core/framework/summary.proto
//
//     auto events = event_file::open("runs/gpt", wall_time).value();
//     events->scalar("loss", 120, 2.31, wall_time);

#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/result.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::report {

/// One Event as far as it is used here: a version line, or scalars of one step.
struct tb_event {
    double wall_time = 0.0; ///< seconds since 1970
    std::int64_t step = 0;
    std::string file_version{}; ///< only the first event of a file
    std::vector<std::pair<std::string, float>> scalars{};

    friend bool operator==(const tb_event&, const tb_event&) = default;
};

/// The protobuf bytes of an event.
[[nodiscard]] byte_buffer encode_event(const tb_event& event);
/// The reverse; unknown fields are skipped. errc::malformed for anything else.
[[nodiscard]] result<tb_event> decode_event(byte_span bytes);

/// TensorFlow's masked checksum: rotated right by 15 bits plus 0xa282ead8.
[[nodiscard]] constexpr std::uint32_t masked_crc(std::uint32_t crc) noexcept {
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/// Appends one record to `out`.
void append_record(byte_buffer& out, byte_span data);

/// One record at the front of `bytes`: its data and how long it is in the file.
struct record_view {
    byte_span data;
    std::size_t file_bytes = 0;
};
/// errc::malformed when cut off, corrupt when a checksum does not fit.
[[nodiscard]] result<record_view> read_record(byte_span bytes);

/// The event file of one run folder. Not thread-safe.
class event_file {
public:
    /// Opens the folder's newest event file that skein wrote, or starts one.
    [[nodiscard]] static result<std::unique_ptr<event_file>> open(const std::string& folder,
                                                                  double wall_time);

    /// Appends one event, or nothing of it; handed to the system before it returns.
    [[nodiscard]] result<void> append(const tb_event& event);
    [[nodiscard]] result<void> scalar(std::string_view tag, std::uint64_t step, double value,
                                      double wall_time);

    /// Cuts the file before the first event whose step is above `step`, or that cannot be read.
    [[nodiscard]] result<void> truncate_after(std::uint64_t step);

    /// Cuts everything but the version line.
    [[nodiscard]] result<void> clear(double wall_time);

    [[nodiscard]] const std::string& path() const noexcept { return path_; }

private:
    event_file(std::unique_ptr<file> out, std::string path)
        : file_(std::move(out)), path_(std::move(path)) {}

    std::unique_ptr<file> file_;
    std::string path_;
};

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/event_file.ipp>
#endif
