// SPDX-License-Identifier: Apache-2.0
#pragma once
// Message types that the wire tests, the bench and the fuzz target share. They need linkage for
// their field names: not local, not in an unnamed namespace.

#include <skein/core/ids.hpp>
#include <skein/core/result.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace wire_test {

enum class color : std::uint8_t { red = 1, green = 7 };

struct nothing {
    friend bool operator==(const nothing&, const nothing&) = default;
};

struct point {
    std::int32_t x = 0;
    float y = 0;
    friend bool operator==(const point&, const point&) = default;
};
/// Has padding in memory, none on the wire.
struct padded {
    std::uint8_t small = 0;
    std::uint64_t large = 0;
    friend bool operator==(const padded&, const padded&) = default;
};
struct tree {
    std::string name;
    std::vector<tree> children;
    friend bool operator==(const tree&, const tree&) = default;
};

/// Every kind of value that travels.
struct everything {
    bool truth = false;
    std::int8_t i8 = 0;
    std::uint64_t u64 = 0;
    float f32 = 0;
    double f64 = 0;
    char letter = 0;
    color paint = color::red;
    std::byte raw{};
    std::string text;
    std::vector<std::int32_t> numbers;
    std::vector<bool> flags;
    std::vector<std::string> names;
    std::vector<std::byte> blob;
    std::array<std::uint16_t, 3> triple{};
    std::array<std::string, 2> pair_of_text = std::array<std::string, 2>();
    std::map<std::string, std::int64_t> ordered;
    std::unordered_map<std::uint32_t, point> hashed;
    std::set<std::int16_t> ordered_set;
    std::unordered_set<std::string> hashed_set;
    std::optional<point> maybe;
    std::optional<std::string> maybe_not;
    std::variant<std::monostate, std::int32_t, std::string, point> choice;
    std::pair<std::int32_t, std::string> couple;
    std::tuple<std::uint8_t, double, std::string> few;
    std::chrono::milliseconds pause{};
    skein::node_id node;
    padded inside;
    nothing empty;
    std::vector<padded> many;
    tree root;
    friend bool operator==(const everything&, const everything&) = default;
};

inline everything make_everything() {
    everything e;
    e.truth = true;
    e.i8 = -5;
    e.u64 = 0xFEDCBA9876543210u;
    e.f32 = 1.5f;
    e.f64 = -2.25;
    e.letter = 'q';
    e.paint = color::green;
    e.raw = std::byte{200};
    e.text = "a string that is longer than any small buffer, with \0 inside";
    e.text[5] = '\0';
    e.numbers = {1, -2, 3'000'000};
    e.flags = {true, false, true};
    e.names = {"", "one", std::string(200, 'x')};
    e.blob = {std::byte{1}, std::byte{2}, std::byte{255}};
    e.triple = {1, 2, 65535};
    e.pair_of_text = {"left", "right"};
    e.ordered = {{"a", 1}, {"b", -1}};
    e.hashed = {{7, {1, 2.0f}}, {9, {3, 4.0f}}};
    e.ordered_set = {-3, 0, 3};
    e.hashed_set = {"x", "yy"};
    e.maybe = point{5, 6.5f};
    e.choice = std::string("chosen");
    e.couple = {4, "four"};
    e.few = {9, 0.5, "few"};
    e.pause = std::chrono::milliseconds(1500);
    e.node = skein::node_id(42);
    e.inside = {3, 4};
    e.many = {{1, 2}, {3, 4}};
    e.root = {"root", {{"left", {}}, {"right", {{"leaf", {}}}}}};
    return e;
}

/// Views into the message.
struct views {
    std::uint8_t odd = 0;
    std::string_view name;
    std::span<const float> values;
    std::span<const point> points;
    std::span<const std::byte> blob;
};
/// The same message with owners instead of views.
struct owners {
    std::uint8_t odd = 0;
    std::string name;
    std::vector<float> values;
    std::vector<point> points;
    std::vector<std::byte> blob;
};

struct outcome {
    skein::result<std::int32_t> number = 0;
    skein::result<void> done;
    std::optional<skein::error> problem;
};

/// Has no plain fields: travels through its codec.
class secretive {
public:
    secretive() = default;
    explicit secretive(std::uint32_t v) : value_(v) {}
    [[nodiscard]] std::uint32_t value() const { return value_; }

private:
    std::uint32_t value_ = 0;
};
struct with_secret {
    std::vector<secretive> all;
};

} // namespace wire_test
