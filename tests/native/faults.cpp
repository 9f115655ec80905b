#include "faults.h"

#include <pybind11/stl.h>

#include <utility>

#include "schedule.h"

namespace deepnvme::test {
namespace {

namespace py = pybind11;

using CallFault = std::tuple<std::string, uint64_t, uint64_t, int>;

void install(const std::vector<int>& submits, const std::vector<int>& reaps,
             const std::vector<int64_t>& fates, const std::vector<int>& holds,
             const std::vector<int>& registers, const std::vector<CallFault>& calls,
             bool refuse_direct, bool refuse_fixed, int64_t dies_after, bool engines) {
    Faults faults;
    faults.submits = Answers<int>(all_transfers, submits);
    faults.reaps = Answers<int>(as_usual, reaps);
    faults.fates = Answers<int64_t>(all_bytes, fates);
    faults.holds = Answers<int>(0, holds);
    faults.registers = Answers<int>(0, registers);
    faults.refuse_direct = refuse_direct;
    faults.refuse_fixed = refuse_fixed;
    faults.dies_after = dies_after;
    for (const auto& [call, first, count, error] : calls) {
        faults.calls.push_back({call, first, count, error});
    }
    Schedule::instance().install(std::move(faults), engines);
}

py::dict met(const Schedule::Met& met) {
    py::dict result;
    result["path"] = py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefaultAndSize(
        met.path.data(), static_cast<Py_ssize_t>(met.path.size())));
    result["offset"] = met.transfer.offset;
    result["nbytes"] = met.transfer.nbytes;
    result["write"] = met.transfer.write;
    result["fixed"] = met.transfer.buffer_index >= 0;
    result["direct"] = met.direct;
    result["result"] = met.result;
    return result;
}

py::dict report() {
    const Schedule::Report report = Schedule::instance().report();
    py::list transfers;
    for (const Schedule::Met& one : report.transfers) {
        transfers.append(met(one));
    }
    py::dict result;
    result["transfers"] = transfers;
    result["calls"] = report.calls;
    result["failed_calls"] = report.failed_calls;
    result["most_in_flight"] = report.most_in_flight;
    result["unmapped"] = report.unmapped;
    return result;
}

}  // namespace

void bind_faults(py::module_& m) {
    m.def("install", &install, py::kw_only(), py::arg("submits"), py::arg("reaps"),
          py::arg("fates"), py::arg("holds"), py::arg("registers"), py::arg("calls"),
          py::arg("refuse_direct"), py::arg("refuse_fixed"), py::arg("dies_after"),
          py::arg("engines"));
    m.def("clear", [] { Schedule::instance().clear(); });
    m.def("report", &report);
}

}  // namespace deepnvme::test
