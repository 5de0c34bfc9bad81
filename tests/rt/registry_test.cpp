// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>

#include <skein/rt/registry.hpp>

#include <set>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

namespace registry_test {
inline int overloaded(int) { return 1; }
inline int overloaded(double) { return 2; }
template <class T>
int generic(T) {
    return 3;
}
// Never called: naming it in a call is enough to be registered.
[[maybe_unused]] inline void never_called() {
    (void)remote<static_cast<int (*)(int)>(&overloaded)>(1);
    (void)remote<static_cast<int (*)(double)>(&overloaded)>(1.0);
    (void)remote<&generic<int>>(1);
    (void)remote<&generic<long>>(1L);
}
void use() {
    if (rt::registry::instance().size() == 0) never_called();
}
} // namespace registry_test

namespace {

rt::function_record made(const char* mangled, std::uint64_t signature) {
    rt::function_record r;
    r.mangled = mangled;
    static std::uint64_t hash;
    hash = signature;
    r.signature_hash = [] { return hash; };
    return r;
}

} // namespace

TEST_CASE("functions, overloads, instances of templates, methods and constructors have records of "
          "their own",
          "[rt][registry]") {
    registry_test::use();
    const auto& all = rt::registry::instance();
    std::set<std::string> names;
    for (std::uint32_t i = 0; i < all.size(); ++i) {
        REQUIRE(all.at(i) != nullptr);
        CHECK(all.at(i)->index == i);
        names.insert(all.at(i)->name);
    }
    CHECK(names.size() == all.size());
    CHECK(all.at(static_cast<std::uint32_t>(all.size())) == nullptr);
    const auto has = [&](const char* part) {
        for (auto& n : names)
            if (n.find(part) != std::string::npos) return true;
        return false;
    };
    CHECK(has("registry_test::overloaded(int)"));
    CHECK(has("registry_test::overloaded(double)"));
    CHECK(has("registry_test::generic<int>"));
    CHECK(has("registry_test::generic<long>"));
    CHECK(has("rt_test::counter::add"));
}

TEST_CASE("a function's name is readable", "[rt][registry]") {
    registry_test::use();
    const auto& all = rt::registry::instance();
    bool found = false;
    for (std::uint32_t i = 0; i < all.size(); ++i)
        found |= all.at(i)->name == "registry_test::overloaded(int)";
    CHECK(found);
}

TEST_CASE("the order of registration does not matter to indices and hash", "[rt][registry]") {
    auto a = made("1a", 1), b = made("1b", 1), c = made("1c", 1);
    auto one = rt::registry::build({&a, &b, &c});
    auto two = rt::registry::build({&c, &a, &b});
    REQUIRE(one);
    REQUIRE(two);
    CHECK(one->hash() == two->hash());
    CHECK(one->at(0) == two->at(0));
}

TEST_CASE("another signature or another function gives another hash", "[rt][registry]") {
    auto a = made("1a", 1);
    const auto before = rt::registry::build({&a})->hash();
    auto changed = made("1a", 2);
    CHECK(rt::registry::build({&changed})->hash() != before);
    auto renamed = made("1b", 1);
    CHECK(rt::registry::build({&renamed})->hash() != before);
}

TEST_CASE("two functions of one name are found when the program starts", "[rt][registry]") {
    auto a = made("1a", 1), again = made("1a", 1);
    auto built = rt::registry::build({&a, &again});
    REQUIRE_FALSE(built);
    CHECK(built.error().code() == errc::already_exists);
    CHECK(std::string(built.error().what()).find("anonymous namespaces") != std::string::npos);
}

TEST_CASE("the hash of a name is the same on every compiler", "[rt][registry]") {
    static_assert(rt::detail::hash_text("") != rt::detail::hash_text("a"));
    CHECK(rt::detail::hash_text("skein") == 0x7f311141025b0d54);
    CHECK(rt::detail::hash_text("ab") != rt::detail::hash_text("ba"));
}
