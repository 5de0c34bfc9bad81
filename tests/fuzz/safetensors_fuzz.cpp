// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for files read from disk: any input gives a value or an error, without a crash or
// a leak. What was accepted is written and read again and must be the same.
//
// The first byte chooses the format; the rest is the file.

#include <skein/report/event_file.hpp>
#include <skein/train/manifest.hpp>
#include <skein/train/safetensors.hpp>
#include <tests/fuzz/require.hpp>

using namespace skein;
using namespace skein::report;
using namespace skein::train;

namespace {

using fuzz::require;

void try_safetensors(byte_span file) {
    const auto content = parse_safetensors(file);
    if (!content) return;
    for (auto& t : content->tensors)
        require(t.bytes.empty() || (t.bytes.data() >= file.data() &&
                                    t.bytes.data() + t.bytes.size() <= file.data() + file.size()),
                "a view leaves the file");
    const auto plan = plan_safetensors(content->tensors, content->metadata);
    require(plan.has_value(), "accepted, but cannot be written");
    byte_buffer again;
    write_safetensors(*plan, [&](byte_span part) {
        return append(again, part), result<void>();
    }).value();
    const auto back = parse_safetensors(again);
    require(back && back->tensors.size() == content->tensors.size() &&
                back->metadata == content->metadata,
            "written, but comes back other");
}

/// Every row is in one part.
void require_rows(const tensor_entry& tensor) {
    std::int64_t end = 0;
    for (const auto& part : tensor.parts) {
        require(part.first_row == end && part.rows >= 0, "the parts leave a hole or overlap");
        end += part.rows;
    }
    require(end == train::detail::rows_of(tensor.shape), "the parts are not the tensor");
}

void try_whole_manifest(byte_span file) {
    if (const auto manifest = parse_manifest(file)) {
        const auto text = dump_manifest(*manifest);
        const auto back = parse_manifest(as_bytes(std::string_view(text)));
        require(back.has_value(), "a manifest cannot be written again");
        require(back->tensors == manifest->tensors, "a table of tensors comes back other");
        for (const auto& [name, tensor] : back->tensors) require_rows(tensor);
    }
}

void try_manifest(byte_span file) {
    try_whole_manifest(file);
    // Behind the checksum too: most inputs never get past it.
    const std::string body = skein::to_string(file);
    const auto text = body + train::detail::make_manifest_tail(body);
    try_whole_manifest(as_bytes(std::string_view(text)));
}

void try_events(byte_span file) {
    for (;;) {
        const auto record = read_record(file);
        if (!record) break;
        if (const auto event = decode_event(record->data)) {
            const auto back = decode_event(encode_event(*event));
            require(back && encode_event(*back) == encode_event(*event),
                    "an event comes back other");
        }
        file = file.subspan(record->file_bytes);
    }
    (void)decode_event(file);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    // A copy of its own, so that reading beyond it is seen.
    const auto file = to_buffer(byte_span(reinterpret_cast<const std::byte*>(data) + 1, size - 1));
    switch (data[0] % 3) {
    case 0: try_safetensors(file); break;
    case 1: try_manifest(file); break;
    case 2: try_events(file); break;
    }
    return 0;
}
