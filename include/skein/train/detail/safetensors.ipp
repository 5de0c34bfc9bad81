// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/safetensors.hpp>.

#include <skein/core/error.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE const tensor_info* safetensors_header::find(std::string_view name) const noexcept {
    auto it = std::find_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == name; });
    return it == tensors.end() ? nullptr : &*it;
}

SKEIN_INLINE result<std::uint64_t> tensor_bytes(std::string_view dtype,
                                                std::span<const std::int64_t> shape) {
    const auto element = dtype_size(dtype);
    if (!element)
        return error(errc::not_supported, fmt::format("element type '{}' is not known", dtype));
    constexpr std::uint64_t limit = INT64_MAX;
    std::uint64_t bytes = *element;
    bool empty = false;
    for (auto extent : shape) {
        if (extent < 0)
            return error(errc::malformed, fmt::format("an extent of {} in a shape", extent));
        if (extent == 0) {
            empty = true;
            continue;
        }
        if (bytes > limit / static_cast<std::uint64_t>(extent))
            return error(errc::too_large,
                         "the extents of a shape multiply to more than 2^63 bytes");
        bytes *= static_cast<std::uint64_t>(extent);
    }
    return empty ? 0 : bytes;
}

SKEIN_INLINE result<safetensors_plan> plan_safetensors(std::span<const tensor_view> tensors,
                                                       const string_map& metadata) {
    safetensors_plan plan;
    for (auto& t : tensors) {
        const auto bytes = tensor_bytes(t.dtype, t.shape);
        if (!bytes)
            return error(errc::invalid_argument,
                         fmt::format("tensor '{}': {}", t.name, bytes.error().text()));
        if (*bytes != t.bytes.size())
            return error(errc::invalid_argument,
                         fmt::format("tensor '{}': {} bytes given, type and shape say {}", t.name,
                                     t.bytes.size(), *bytes));
        if (t.name == "__metadata__")
            return error(errc::invalid_argument, "a tensor cannot be called __metadata__");
        plan.tensors.push_back(&t);
    }
    std::sort(plan.tensors.begin(), plan.tensors.end(), [](auto* a, auto* b) {
        const auto size_a = *dtype_size(a->dtype), size_b = *dtype_size(b->dtype);
        return size_a != size_b ? size_a > size_b : a->name < b->name;
    });

    json header = json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    std::uint64_t offset = 0;
    for (auto* t : plan.tensors) {
        if (header.contains(t->name))
            return error(errc::invalid_argument,
                         fmt::format("two tensors are called '{}'", t->name));
        const auto end = offset + t->bytes.size();
        header[t->name] = {
            {"dtype", t->dtype}, {"shape", t->shape}, {"data_offsets", {offset, end}}};
        offset = end;
    }
    std::string text = dump_json(header);
    text.append((8 - text.size() % 8) % 8, ' ');
    if (text.size() > max_safetensors_header)
        return error(errc::too_large,
                     fmt::format("a header of {} bytes is longer than the format's "
                                 "{}",
                                 text.size(), max_safetensors_header));
    plan.head.resize(8);
    store_le<std::uint64_t>(reinterpret_cast<std::byte*>(plan.head.data()), text.size());
    plan.head += text;
    plan.file_bytes = plan.head.size() + offset;
    return plan;
}

SKEIN_INLINE result<std::uint64_t> safetensors_head_bytes(byte_span first8,
                                                          std::uint64_t file_bytes) {
    if (first8.size() < 8 || file_bytes < 8)
        return error(errc::malformed,
                     fmt::format("{} bytes are too short for a safetensors file", file_bytes));
    const auto length = load_le<std::uint64_t>(first8.data());
    if (length > max_safetensors_header)
        return error(errc::too_large,
                     fmt::format("a header of {} bytes is longer than the format's {}", length,
                                 max_safetensors_header));
    if (length > file_bytes - 8)
        return error(errc::malformed,
                     fmt::format("the header claims {} bytes but the file ends after "
                                 "{}",
                                 length, file_bytes));
    return 8 + length;
}

namespace detail {

/// One entry of the header, offsets still relative to the data.
SKEIN_INLINE result<tensor_info> parse_tensor_info(const std::string& name, const json& entry) {
    auto bad = [&](std::string why) {
        return error(errc::malformed, fmt::format("tensor '{}': {}", name, why));
    };
    if (!entry.is_object() || entry.size() != 3) return bad("is not {dtype, shape, data_offsets}");
    const auto dtype = json_string(entry, "dtype");
    const auto shape = json_uints(entry, "shape", 64);
    const auto range = json_uints(entry, "data_offsets", 2);
    if (!dtype) return bad(dtype.error().text());
    if (!shape) return bad(shape.error().text());
    if (!range) return bad(range.error().text());
    if (range->size() != 2 || (*range)[0] > (*range)[1])
        return bad("data_offsets are not [begin, end]");

    tensor_info info{.name = name,
                     .dtype = *dtype,
                     .shape = {},
                     .offset = (*range)[0],
                     .bytes = (*range)[1] - (*range)[0]};
    for (auto extent : *shape) {
        if (extent > INT64_MAX) return bad("an extent does not fit 63 bits");
        info.shape.push_back(static_cast<std::int64_t>(extent));
    }
    const auto bytes = tensor_bytes(info.dtype, info.shape);
    if (!bytes) return bad(bytes.error().text());
    if (*bytes != info.bytes)
        return bad(
            fmt::format("type and shape need {} bytes, data_offsets give {}", *bytes, info.bytes));
    return info;
}

} // namespace detail

SKEIN_INLINE result<safetensors_header> parse_safetensors_head(byte_span head,
                                                               std::uint64_t file_bytes) {
    const auto head_bytes =
        safetensors_head_bytes(head.first(std::min<std::size_t>(head.size(), 8)), file_bytes);
    if (!head_bytes) return head_bytes.error();
    if (head.size() < *head_bytes) return error(errc::malformed, "the header is cut off");
    const auto text = as_text(head.subspan(8, *head_bytes - 8));
    if (text.empty() || text.front() != '{')
        return error(errc::malformed, "the header does not begin with '{'");
    auto parsed = parse_json(text, {.max_bytes = max_safetensors_header, .max_depth = 8});
    if (!parsed)
        return error(parsed.error().code(), "safetensors header: " + parsed.error().text());

    safetensors_header out;
    out.data_offset = *head_bytes;
    for (auto& [name, entry] : parsed->items()) {
        if (name == "__metadata__") {
            if (!entry.is_object()) return error(errc::malformed, "__metadata__ is not an object");
            for (auto& [key, value] : entry.items()) {
                if (!value.is_string())
                    return error(errc::malformed,
                                 fmt::format("__metadata__ '{}' is not text", key));
                out.metadata[key] = value.get<std::string>();
            }
            continue;
        }
        auto info = detail::parse_tensor_info(name, entry);
        if (!info) return info.error();
        out.tensors.push_back(std::move(*info));
    }

    // No overlap and no hole: sorted by offset, each tensor begins where the one before it ended.
    std::sort(out.tensors.begin(), out.tensors.end(), [](auto& a, auto& b) {
        return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    std::uint64_t end = 0;
    for (auto& info : out.tensors) {
        if (info.offset != end)
            return error(errc::malformed,
                         fmt::format("tensor '{}' begins at {}, but the data before it "
                                     "ends at {} ({})",
                                     info.name, info.offset, end,
                                     info.offset < end ? "overlap" : "hole"));
        end += info.bytes;
        info.offset += out.data_offset;
    }
    const auto data = file_bytes - out.data_offset;
    if (end != data)
        return error(errc::malformed,
                     fmt::format("the tensors take {} bytes, the file has {} ({})", end, data,
                                 data < end ? "truncated" : "bytes left over"));
    return out;
}

SKEIN_INLINE result<safetensors_content> parse_safetensors(byte_span file) {
    auto header = parse_safetensors_head(file, file.size());
    if (!header) return header.error();
    safetensors_content out;
    out.metadata = std::move(header->metadata);
    for (auto& info : header->tensors)
        out.tensors.push_back({std::move(info.name), std::move(info.dtype), std::move(info.shape),
                               file.subspan(info.offset, info.bytes)});
    return out;
}

} // namespace skein::train
