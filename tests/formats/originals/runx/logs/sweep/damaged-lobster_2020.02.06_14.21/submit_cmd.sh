cd /home/logs/sweep/damaged-lobster_2020.02.06_14.21/code; PYTHONPATH=  python train.py --lr 0.04 --solver sgd --logdir /home/logs/sweep/damaged-lobster_2020.02.06_14.21 
