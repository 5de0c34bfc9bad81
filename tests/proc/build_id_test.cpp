// SPDX-License-Identifier: Apache-2.0
#include <skein/proc/build_id.hpp>

#include <vector>

#include <elf.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("the build id is there and does not change", "[rt][build_id]") {
    CHECK(proc::build_id() != 0);
    CHECK(proc::build_id() == proc::build_id());
}

TEST_CASE("a build-id note is found behind other notes, and broken notes are not believed",
          "[rt][build_id]") {
    byte_buffer notes;
    const auto note = [&](std::uint32_t type, std::string_view name, std::string_view desc) {
        for (std::uint32_t v : {std::uint32_t(name.size()), std::uint32_t(desc.size()), type}) {
            std::byte b[4];
            std::memcpy(b, &v, 4);
            append(notes, byte_span(b, 4));
        }
        for (auto text : {name, desc}) {
            append(notes, as_bytes(text));
            notes.resize((notes.size() + 3) & ~std::size_t{3});
        }
    };
    note(5, std::string_view("GNU\0", 4), "property");
    note(NT_GNU_BUILD_ID, std::string_view("GNU\0", 4), "identity!");
    CHECK(to_string(proc::detail::find_build_id(notes)) == "identity!");
    notes.resize(notes.size() - 8); // cut
    CHECK(proc::detail::find_build_id(notes).empty());
    CHECK(proc::detail::find_build_id({}).empty());
}
