cd /home/logs/sweep/quiet-otter_2020.02.06_14.20/code; PYTHONPATH=  python train.py --lr 0.03 --solver sgd --logdir /home/logs/sweep/quiet-otter_2020.02.06_14.20 
