// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for what the data layer takes from files and from other processes: the index of a
// folder, a helper's answer, a rank's request. Any input gives a value or an error, without a crash
// or a leak; views stay within the bytes that came.
//
// The first byte chooses what it is.

#include <skein/core/error.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/detail/folder_index.hpp>
#include <skein/data/detail/row_program.hpp>
#include <skein/data/folder.hpp>
#include <skein/data/pipeline.hpp>
#include <skein/wire/decode.hpp>
#include <tests/fuzz/require.hpp>

#include <cstdint>
#include <memory>

using namespace skein;

namespace {

using fuzz::require;

void try_index(byte_buffer file) {
    // With the right length and sum, too: most inputs never get past them.
    for (const bool is_mended : {false, true}) {
        if (is_mended) {
            if (file.size() < sizeof(data::detail::index_head)) return;
            data::detail::seal_index(file);
        }
        const auto index = data::detail::folder_index::parse(file, nullptr);
        if (!index) continue;
        std::size_t characters = index->root().size();
        const auto classes = index->classes();
        require(classes.size() == index->class_count(), "a class is missing");
        for (std::uint64_t i = 0; i < index->size(); ++i) {
            const auto entry = index->at(i);
            require(entry.label < classes.size(), "a label without a class");
            characters += entry.folder.size() + entry.name.size();
            for (const char c : entry.name) characters += c == 'x' ? 1 : 0; // reads all of it
        }
    }
}

struct row {
    data::image<float, 3> pixels;
    data::array<std::int32_t> numbers;
    std::array<std::int64_t, 2> pair = std::array<std::int64_t, 2>();
    float value = 0;
};
row none_of(std::int64_t i) { return {{}, {}, {i, i}, 0}; }
row same(const row& r) { return r; }

/// As row_engine takes an answer in.
void try_answer(byte_span bytes) {
    wire::reader from(bytes);
    data::detail::rows_answer answer;
    if (!wire::decode(from, answer)) return;
    static const auto program = std::make_shared<data::detail::typed_program<
        decltype(data::range(1) | data::map<&none_of>() | data::on(data::helpers{.most = 1}) |
                 data::map<&same>())>>(data::range(1) | data::map<&none_of>() |
                                       data::on(data::helpers{.most = 1}) | data::map<&same>());
    data::arena memory;
    const data::arena_scope scope(memory);
    wire::reader rows(answer.rows);
    data::detail::cells values;
    std::size_t bytes_of_rows = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(answer.fates.size(), 64); ++i) {
        memory.reset();
        try {
            if (!program->finish(rows, 1, 0, 0, values)) continue;
            for (const auto& value : values) {
                for (std::size_t b = 0; b < value.size(); ++b)
                    bytes_of_rows += static_cast<const unsigned char*>(
                                         static_cast<const void*>(value.data))[b] != 0;
                require(value.size() <= bytes.size(), "a row is larger than its message");
            }
        } catch (const error&) {
            return;
        }
    }
}

/// As a helper takes a request.
void try_request(byte_span bytes) {
    wire::reader from(bytes);
    data::detail::rows_request wanted;
    if (!wire::decode(from, wanted)) return;
    if (wanted.samples.size() > 256) return;
    const auto answer = data::detail::make_rows(
        wanted, [](std::uint64_t, std::uint64_t, wire::reader& places, wire::writer&) {
            data::folder_place at;
            wire::decode(places, at).value();
            return data::detail::row_fate::dropped;
        });
    require(answer.fates.size() == wanted.samples.size(), "a row without a fate");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
    if (size == 0) return 0;
    // A copy of its own, so that reading beyond it is seen.
    const auto bytes =
        to_buffer(byte_span(reinterpret_cast<const std::byte*>(input) + 1, size - 1));
    switch (input[0] % 3) {
    case 0: try_index(bytes); break;
    case 1: try_answer(bytes); break;
    case 2: try_request(bytes); break;
    }
    return 0;
}
