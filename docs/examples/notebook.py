# %% What should two DGX H100 reach, and how near did a run come?
from pathlib import Path

from ncclprobe import api

log = Path("tests/data/nccl_tests/all_reduce.txt")
outlook = api.expect("dgx-h100", nodes=2, sizes=[1 << 30])
print(outlook.lines[0].expectation.value, "GB/s expected of", outlook.machine)

# %% Judge the log of nccl-tests: one line for each row
judgement = api.judge(log, machine="dgx-h100")
for row in judgement.rows:
    print(row.op, row.nbytes, round(row.busbw_GBps, 1), row.status)

# %% Why did a job fail? All of it as dictionaries, such as for pandas
report = api.explain("tests/data/failures/nccl-no-interface")
print(report.causes[0].message)
print(sorted(report.to_dict())[:3])
