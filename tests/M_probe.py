import sys
from pathlib import Path
import torch
from tests.harness.training import together as t
from tests.harness.training.test_split import all_variants
if __name__=="__main__":
    from torch import multiprocessing
    f=Path("/tmp/M_out"); f.mkdir(exist_ok=True)
    multiprocessing.spawn(t.in_two, args=(t.free_port(), all_variants, f), nprocs=2)
    for v in t.VARIANTS:
        a=t.run_here(t.Trained(t.spec_of(v)), range(1,4))
        for s in ("rows","fully"):
            b=torch.load(f/f"{s} {v}.pt")
            d={n:(b["weights"][n]-w).abs().max().item() for n,w in a["weights"].items()}
            g=torch.cat([(b["weights"][n]-w).abs().flatten() for n,w in a["weights"].items()])
            print(v,s,max(d.values()),"over 1e-5:",int((g>1e-5).sum()),"of",g.numel(), [ (k,x,b["metrics"][k]) for k,x in a["metrics"].items() if isinstance(x,float) and abs(x-b["metrics"][k])>1e-4*max(1,abs(x))])
