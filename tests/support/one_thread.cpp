// SPDX-License-Identifier: Apache-2.0
// Part of every test program: an assertion on a second thread ends it, and says so. Catch2 keeps
// the running test, its output and its messages for one thread; two at once abort somewhere in
// Catch2, on some days, in a test that has passed a thousand times.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <catch2/catch_test_case_info.hpp>
#include <catch2/interfaces/catch_interfaces_reporter.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>

namespace {

class one_thread : public Catch::EventListenerBase {
public:
    using EventListenerBase::EventListenerBase;
    void testCaseStarting(const Catch::TestCaseInfo& test) override {
        home_ = std::this_thread::get_id();
        name_ = test.name;
    }
    void assertionStarting(const Catch::AssertionInfo& at) override {
        if (std::this_thread::get_id() == home_) return;
        std::fprintf(stderr,
                     "%s:%zu: an assertion on a second thread, in \"%s\"; collect there, assert "
                     "on the test's thread (tests/support/expect.hpp throws there)\n",
                     at.lineInfo.file, at.lineInfo.line, name_.c_str());
        std::_Exit(70); // abort() would be reported by Catch2, on this thread
    }

private:
    std::thread::id home_;
    std::string name_;
};

} // namespace

CATCH_REGISTER_LISTENER(one_thread)
