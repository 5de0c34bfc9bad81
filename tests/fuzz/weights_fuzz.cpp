// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for weights of others: an index, a file, a folder, a map, elements. Any input gives
// a value or an error, without a crash or a leak; what an index names stays in its folder, and what a
// plan reads is there.
//
// The first byte chooses which; the rest is the input.

#include <skein/core/error.hpp>
#include <skein/sim/disk.hpp>
#include <skein/train/element_values.hpp>
#include <skein/train/weight_compare.hpp>
#include <skein/train/weight_map.hpp>
#include <skein/train/weight_mean.hpp>
#include <skein/train/weight_source.hpp>
#include <tests/fuzz/require.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace skein;
using namespace skein::train;

namespace {

using fuzz::require;

void try_index(byte_span text) {
    const auto index = train::detail::parse_weight_index(text);
    if (!index) return;
    for (const auto& [name, file] : *index)
        require(name.size() <= max_weight_name && file.find('/') == std::string::npos &&
                    file.ends_with(".safetensors") && !file.starts_with("."),
                "an index leaves its folder");
}

/// All of it is read, and is equal to itself.
void use_source(const weight_source& from) {
    for (const auto& [name, t] : from.tensors()) {
        byte_buffer bytes(tensor_bytes(t.dtype, t.shape).value());
        from.read(name, 0, train::detail::rows_of(t.shape), bytes);
    }
    require(compare_weights(from, from).different.empty(), "a source is not equal to itself");
}

void try_file(byte_span bytes) {
    sim::disk disk;
    disk.write_whole("w.safetensors", bytes).value();
    std::vector<std::unique_ptr<weight_source>> two;
    for (int i = 0; i < 2; ++i)
        two.push_back(std::make_unique<safetensors_weights>(disk, "w.safetensors"));
    use_source(*two[0]);
    use_source(mean_weights(std::move(two)));
}

void try_folder(byte_span bytes) {
    if (bytes.empty()) return;
    const auto cut =
        std::min<std::size_t>(std::to_integer<std::size_t>(bytes[0]) * 4, bytes.size() - 1);
    sim::disk disk;
    disk.make_dirs("hub").value();
    disk.write_whole("hub/model.safetensors.index.json", bytes.subspan(1, cut)).value();
    disk.write_whole("hub/a.safetensors", bytes.subspan(1 + cut)).value();
    disk.write_whole("outside.safetensors", bytes.subspan(1 + cut)).value();
    use_source(*open_weights(disk, "hub"));
}

std::vector<std::string> words_of(std::string_view line) {
    std::vector<std::string> words;
    while (!line.empty()) {
        const auto space = std::min(line.find(' '), line.size());
        words.emplace_back(line.substr(0, space));
        line.remove_prefix(std::min(space + 1, line.size()));
    }
    return words;
}

void require_pieces(const weight_plan& plan, const source_table& from) {
    for (const auto& t : plan.tensors)
        for (const auto& piece : t.pieces) {
            const auto found = from.find(piece.name);
            require(found != from.end(), "a plan reads what is not there");
            auto shape = found->second.shape;
            // Rows of a tensor that is turned round are its columns, or those of the other side.
            const auto most =
                shape.size() == 2 ? std::max(shape[0], shape[1]) : train::detail::rows_of(shape);
            require(piece.first_row >= 0 && piece.rows >= 0 && piece.first_row <= most &&
                        piece.rows <= most - piece.first_row,
                    "a plan reads rows that are not there");
        }
}

/// Lines: a letter, then names; "o NAME ROWS" and "f NAME ROWS" are tensors of module and folder.
void try_map(byte_span bytes) {
    weight_map map;
    source_table theirs, ours;
    std::string_view text = as_text(bytes);
    for (int lines = 0; !text.empty() && lines < 64; ++lines) {
        const auto end = std::min(text.find('\n'), text.size());
        const auto words = words_of(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        if (words.size() < 2) continue;
        const auto last = words.back();
        const auto number = static_cast<std::int64_t>(last.size());
        const std::vector<std::string> names(words.begin() + 1, words.end() - 1);
        try {
            switch (words[0].empty() ? ' ' : words[0][0]) {
            case 's': map.same(words[1], last); break;
            case 't': map.turned(words[1], last); break;
            case 'j': map.joined(names, last); break;
            case 'k': map.joined(names, last, {2, 1, 1}, true); break;
            case 'c': map.split(last, names); break;
            case 'a': map.tied(words[1], last); break;
            case 'i': map.ignored(last); break;
            case 'p': map.optional_prefix(last); break;
            case 'o': ours[words[1]] = {"F32", {number, 4}}; break;
            case 'f': theirs[words[1]] = {"F32", {number, 4}}; break;
            default: break;
            }
        } catch (const error&) { // a rule that cannot be followed both ways
        }
    }
    std::vector<wanted_tensor> wanted;
    for (const auto& [name, t] : ours) wanted.push_back({name, t.dtype, t.shape, {}});
    try {
        require_pieces(plan_weights(map, theirs, wanted, false, "here"), theirs);
    } catch (const error&) {}
    require_pieces(plan_export(map, ours), ours);
}

void try_elements(byte_span bytes) {
    if (bytes.empty()) return;
    static constexpr std::string_view types[] = {"F16", "BF16", "F32", "F64"};
    const auto type = types[std::to_integer<std::size_t>(bytes[0]) % 4];
    const auto size = dtype_size(type).value();
    const auto elements = bytes.subspan(1, (bytes.size() - 1) / size * size);
    const auto wide = cast_elements(elements, type, "F64");
    const auto back = cast_elements(wide, "F64", type);
    const auto again = cast_elements(back, type, "F64");
    std::vector<double> first(wide.size() / 8), second(first.size());
    read_values("F64", wide, first);
    read_values("F64", again, second);
    for (std::size_t i = 0; i < first.size(); ++i)
        require(first[i] == second[i] || (first[i] != first[i] && second[i] != second[i]),
                "an element does not come back");
    for (const auto other : types) (void)cast_elements(elements, type, other);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    // A copy of its own, so that reading beyond it is seen.
    const auto input = to_buffer(byte_span(reinterpret_cast<const std::byte*>(data) + 1, size - 1));
    try {
        switch (data[0] % 5) {
        case 0: try_index(input); break;
        case 1: try_file(input); break;
        case 2: try_folder(input); break;
        case 3: try_map(input); break;
        case 4: try_elements(input); break;
        }
    } catch (const error&) { // what is wrong is said
    }
    return 0;
}
